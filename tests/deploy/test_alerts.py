"""The rules of deploy/prometheus, run by promtool over what can happen: who is told, when, and when it is over."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.generate.rules import ALERTS, RECORDS
from tests.deploy.alerts import STORIES, Story
from tests.deploy.debian import program
from tests.layout.project import ROOT

RULES = ROOT / "deploy" / "prometheus" / "octavo.rules.yaml"
OF_SERVER = ("up", "process_", "octavo:http_", "octavo:build_info")
"""How names begin that have no labels of an engine."""


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, check=False)


def whole(name: str) -> str:
    """A series with the labels that say whose it is."""
    metric, _, labels = name.rstrip("}").partition("{")
    known = {'job="octavo"', 'instance="a"'} if metric.startswith(OF_SERVER) else {*_ENGINE}
    own = [label for label in labels.split(", ") if label]
    named = {label.partition("=")[0] for label in own}
    return (
        f"{metric}{{{', '.join([*own, *(label for label in sorted(known) if label.partition('=')[0] not in named)])}}}"
    )


_ENGINE = ('job="octavo"', 'instance="a"', 'model_name="m"', 'engine="0"')


def inputs(story: Story) -> dict[str, str]:
    """Servers a and b are there all the time, with engines, whatever else happens."""
    always = f"1x{story.length}"
    there = {f'octavo:build_info{{instance="{name}"}}': always for name in "ab"}
    ready = 'octavo:engine_state{state="ready"}'
    given = {whole(name): values for name, values in (there | {ready: story.ready or always} | story.series).items()}
    return given | story.others


def told(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """What `ALERTS` has to be."""
    pairs = [[*name.split(), "a"][:2] for name in names]
    return [{"labels": f'{{alertname="{alert}", instance="{place}"}}', "value": 1} for alert, place in pairs]


def queries(story: Story) -> list[dict[str, Any]]:
    """At each minute exactly these fire; and nothing that is recorded is NaN, which alone differs from itself."""
    firing = 'count by (alertname, instance) (ALERTS{alertstate="firing"})'
    nan = " or ".join(f"{record.name} != {record.name}" for record in RECORDS)
    return [
        {"expr": query, "eval_time": f"{minute}m", "exp_samples": samples}
        for minute, names in story.fires.items()
        for query, samples in ((firing, told(names)), (nan, []))
    ]


def check(story: Story) -> dict[str, Any]:
    """The story as promtool reads it."""
    return {
        "interval": f"{story.every}m",
        "input_series": [{"series": name, "values": values} for name, values in inputs(story).items()],
        "promql_expr_test": queries(story),
    }


@pytest.mark.parametrize("name", STORIES)
def test_who_is_told_and_when_it_is_over(name: str, tmp_path: Path) -> None:
    story = STORIES[name]
    file = {"rule_files": [str(RULES)], "evaluation_interval": f"{story.every}m", "tests": [check(story)]}
    path = tmp_path / "story.yaml"
    path.write_text(yaml.safe_dump(file))
    done = promtool("test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_in_a_story_and_is_quiet_and_over_in_one() -> None:
    for alert in ALERTS:
        moments = [
            [any(each.split()[0] == alert.name for each in names) for _, names in sorted(story.fires.items())]
            for story in STORIES.values()
        ]
        assert any(re.search("FT+F", "".join("FT"[fires] for fires in each)) for each in moments), alert.name


def test_the_rules_are_valid() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RECORDS) + len(ALERTS)} rules found" in done.stdout
