"""An unknown command, option or choice is answered with the one that was probably meant."""

from __future__ import annotations

import pytest

from app.__main__ import main


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("srve", "unknown 'srve'; did you mean 'serve'?"),
        ("check-confg my.yaml", "unknown 'check-confg'; did you mean 'check-config'?"),
        ("keys craete --name x", "unknown 'craete'; did you mean 'create'?"),
        ("serve --confg my.yaml", "concertina serve: error: unexpected '--confg'; did you mean --config?"),
        ("serve --prt=1", "concertina serve: error: unexpected '--prt=1'; did you mean --port?"),
        ("keys create --name x --scope-s=a", "concertina keys create: error: unexpected '--scope-s=a'"),
        ("init --provider opnai", "unknown 'opnai'; did you mean 'openai'?"),
        ("migrate now", "concertina migrate: error: unexpected 'now'"),
        ("zzz", "(choose from"),
        ("--versio serve --zzz", "unexpected '--zzz'"),
    ],
)
def test_what_was_probably_meant_is_named(line: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.startswith("usage: concertina")
