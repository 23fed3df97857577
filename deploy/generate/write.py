"""Writes the rules and dashboards under deploy/ again. `python -m deploy.generate.write`."""

from pathlib import Path

from deploy.generate.dashboards import DASHBOARDS
from deploy.generate.grafana import dashboard_json
from deploy.generate.prometheus import rules, rules_of_operator

DEPLOY = Path(__file__).parents[1]


def files() -> dict[Path, str]:
    """Each generated file and its text."""
    dashboards = {DEPLOY / "grafana" / f"{page.name}.json": dashboard_json(page) for page in DASHBOARDS}
    folder = DEPLOY / "prometheus"
    made = {folder / "octavo.rules.yaml": rules(), folder / "octavo.prometheusrule.yaml": rules_of_operator()}
    return made | dashboards


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
