"""The plain manifests are what the chart makes, and valid."""

import kubernetes_validate
import pytest
import yaml

from tests.deploy.plain import FILES, FOLDER, files
from tests.deploy.test_chart import NEWEST, OLDEST, is_custom


def test_they_are_made_from_the_chart() -> None:
    assert {path.name for path in FOLDER.iterdir()} == FILES.keys()
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert written == files(), "run `make manifests`"


@pytest.mark.parametrize("name", FILES)
def test_they_are_valid_and_say_nothing_of_helm(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert "Helm" not in text and "helm.sh" not in text
    for manifest in yaml.safe_load_all(text):
        assert "namespace" not in manifest["metadata"]
        if not is_custom(manifest):
            for version in (OLDEST, NEWEST):
                kubernetes_validate.validate(manifest, version, strict=True)
