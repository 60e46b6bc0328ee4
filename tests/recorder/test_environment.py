"""Settings of a run as texts: for its summary, reports and trackers."""

from pslib.recorder.environment import flat_settings
from pslib.trainer.settings import LoadSettings


def test_settings_for_people_and_trackers_have_no_secrets() -> None:
    plain = {
        "trackers": {"webhook": {"url": "https://chat/1", "retries": 3}, "mlflow": {"uri": "http://a:PW@b"}},
        "load": LoadSettings(path=f"s3://KEY:PW{'x' * 200}@bucket/c"),
    }
    texts = flat_settings(plain)
    assert texts["trackers.webhook.url"] == "(not shown)"
    assert texts["trackers.webhook.retries"] == "3"
    assert texts["trackers.mlflow.uri"] == "http://***@b"
    assert texts["load.path"] == "s3://***@bucket/c"
    assert flat_settings({"webhook": {"url": None}}) == {"webhook.url": "none"}
