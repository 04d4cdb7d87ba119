"""Where settings come from, and how what is wrong with them is told."""

from __future__ import annotations

import copy
import pickle
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.edge.connections import ConnectionLimits
from app.assembly.providers_and_routes import build_policy, build_providers
from app.context.count.vocabulary import VOCABULARIES
from app.context.plan.policy import (
    STAGES_OF_KIND,
    TRIMMING_LIMITS,
    CompactionPolicy,
    ContextPolicy,
    CutPolicy,
    QuotationPolicy,
)
from app.settings import ConfigurationError, Settings, load_settings
from app.settings.configuration_errors import REMOVED_SETTINGS, SettingPath
from app.settings.policies import POLICY_KINDS, Policy, Stage
from app.settings.providers_and_models import Encoding, Model, Quirks, Retries
from app.settings.sections import Limits
from app.settings.settings_tree import list_setting_paths
from app.upstream.provider_contract import ProviderQuirks as UpstreamQuirks
from app.upstream.routing.context_windows import DEFAULT_WINDOW_TOKENS
from app.upstream.routing.router import RetryPolicy

OPENAI = "providers: {openai: {base_url: 'https://api.openai.com/v1'}}\n"


def with_proxy(url: str) -> str:
    return f"providers: {{a: {{base_url: 'http://h/v1', proxy: '{url}'}}}}"


def with_ca_file(file: str) -> str:
    return f'providers: {{a: {{base_url: "http://h/v1", ca_file: "{file}"}}}}'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "concertina.yaml"


def refusal(text: str, file: Path, **environ: str) -> str:
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_settings(str(file), environ=environ)
    return str(caught.value)


def loaded(text: str, file: Path, **environ: str) -> Settings:
    file.write_text(text)
    return load_settings(str(file), environ=environ)


def test_nothing_configured_is_enough() -> None:
    settings = load_settings(environ={})
    assert settings == Settings()
    assert settings.uses_simulated_model


def test_a_provider_ends_the_simulation(file: Path) -> None:
    assert not loaded(OPENAI, file).uses_simulated_model


@pytest.mark.parametrize(
    ("section", "may_go_without"),
    [
        ("base_url: 'https://api.openai.com/v1'", False),
        ("base_url: 'https://8.8.8.8/v1'", False),
        ("base_url: 'https://vllm.example.com/v1'", False),
        ("base_url: 'https://notlocalhost.com/v1'", False),
        ("base_url: 'https://api.openai.com/v1', api_key: ''", False),
        ("base_url: 'https://api.openai.com/v1', headers: {x-api-key: ''}", False),
        ("base_url: 'https://api.openai.com/v1?api-version=1'", False),
        ("base_url: 'https://api.openai.com/v1', pass_client_key: true", False),
        ("base_url: 'https://api.openai.com/v1', api_key: none", True),
        ("base_url: 'https://api.openai.com/v1', headers: {X-Api-Key: x}", True),
        ("base_url: 'https://api.openai.com/v1', auth_header: x-mine, headers: {X-Mine: x}", True),
        ("base_url: 'https://u:p@api.example.com/v1'", True),
        ("base_url: 'https://api.example.com/v1?key=x'", True),
        ("base_url: 'http://127.0.0.1:8080/v1'", True),
        ("base_url: 'http://[::1]:8080/v1'", True),
        ("base_url: 'http://10.1.2.3/v1'", True),
        ("base_url: 'http://100.64.0.1/v1'", True),
        ("base_url: 'http://vllm:8000/v1'", True),
        ("base_url: 'http://LOCALHOST./v1'", True),
        ("base_url: 'http://vllm.models.svc/v1'", True),
        ("base_url: 'http://vllm.models.svc.cluster.local/v1'", True),
        ("base_url: 'http://host.docker.internal:11434/v1'", True),
    ],
)
def test_in_mode_keys_only_a_nearby_provider_may_go_without_a_key(
    section: str, may_go_without: bool, file: Path
) -> None:
    text = f"providers: {{a: {{{section}}}}}\nauth: {{mode: "
    loaded(f"{text}open}}", file)
    if may_go_without:
        loaded(f"{text}keys}}", file)
    else:
        assert "providers.a.api_key" in refusal(f"{text}keys}}", file)


@pytest.mark.parametrize(
    ("section", "rule"),
    [
        ("", "if_meant"),
        (", pass_client_key: true", "always"),
        (", api_key: x", "never"),
        (", api_key: x, pass_client_key: true", "never"),
        (", headers: {Authorization: x}", "never"),
        (", headers: {Authorization: x}, pass_client_key: true", "always"),
    ],
)
def test_which_clients_keys_a_provider_is_shown(section: str, rule: str, file: Path) -> None:
    settings = loaded(f"providers: {{a: {{base_url: 'https://a.example/v1'{section}}}}}", file)
    assert settings.providers["a"].client_key_rule == rule


def test_one_provider_alone_has_every_model(file: Path) -> None:
    assert loaded(OPENAI, file).served_models == {"*": Model(provider="openai")}
    named = loaded(OPENAI + "models: {a: {provider: openai}}", file)
    assert named.served_models == named.models
    assert Settings().served_models == {}


def test_later_sources_win(file: Path) -> None:
    file.write_text("server: {port: 1111, host: 0.0.0.0, workers: 2}")
    environ = {"CONCERTINA_CONFIG": str(file), "CONCERTINA_SERVER__PORT": "2222", "CONCERTINA_SERVER__WORKERS": "3"}
    server = load_settings(environ=environ, arguments={("server", "workers"): "4"}).server
    assert (server.host, server.port, server.workers) == ("0.0.0.0", 2222, 4)


def test_a_named_file_wins_over_the_variable(file: Path) -> None:
    file.write_text("policy: additive")
    assert load_settings(str(file), environ={"CONCERTINA_CONFIG": "/nowhere.yaml"}) == Settings()


def test_a_file_of_defaults_is_below_everything_else(file: Path, tmp_path: Path) -> None:
    defaults = tmp_path / "defaults.yaml"
    defaults.write_text("server: {port: 1111, host: 0.0.0.0, workers: 2, drain_seconds: 1}\npolicy: fade")
    file.write_text("server: {port: 2222, workers: 3, drain_seconds: 2}")
    environ = {"CONCERTINA_DEFAULTS": str(defaults), "CONCERTINA_SERVER__WORKERS": "4"}
    settings = load_settings(str(file), environ=environ, arguments={("server", "drain_seconds"): 4})
    server = settings.server
    assert (server.host, server.port, server.workers, server.drain_seconds) == ("0.0.0.0", 2222, 4, 4)
    assert settings.policy == "fade"
    assert load_settings(environ=environ).server.port == 1111
    assert load_settings(environ={"CONCERTINA_DEFAULTS": ""}) == Settings()


def test_what_is_wrong_with_the_file_of_defaults_is_told_with_its_place(tmp_path: Path) -> None:
    defaults = tmp_path / "defaults.yaml"
    with pytest.raises(ConfigurationError, match=r"defaults\.yaml: cannot read the file"):
        load_settings(environ={"CONCERTINA_DEFAULTS": str(defaults)})
    defaults.write_text("server: {prot: 1}")
    with pytest.raises(ConfigurationError, match=r"server\.prot \(defaults\.yaml:1\): unknown setting"):
        load_settings(environ={"CONCERTINA_DEFAULTS": str(defaults)})


def overridden(text: str, file: Path, **environ: str) -> list[str]:
    """What is said of variables over the file."""
    file.write_text(text)
    said: list[str] = []
    load_settings(str(file), environ=environ, on_override=said.append)
    return said


def test_a_variable_over_the_file_is_named_with_the_setting_and_never_with_a_value(file: Path) -> None:
    text = (
        "server: {port: 1}\ndatabase:\n  url: postgresql://u:inside@h/d\n"
        "providers: {open-ai: {base_url: 'http://h/v1', api_key: written, headers: {X-A: b}}}\n"
        "models: {fast: {provider: open-ai, fallbacks: [slow]}, slow: {provider: open-ai}}"
    )
    assert overridden(text, file) == []
    said = overridden(
        text,
        file,
        CONCERTINA_DATABASE__URL="postgresql://u:outside@h/e",
        CONCERTINA_PROVIDERS__OPEN_AI__API_KEY="given",
        CONCERTINA_PROVIDERS__OPEN_AI__HEADERS="{X-A: given, X-B: given}",
        CONCERTINA_MODELS__FAST__FALLBACKS="[]",
        CONCERTINA_MODELS__FAST__CONTEXT_WINDOW="1000",
        CONCERTINA_SERVER__WORKERS="2",
        CONCERTINA_POLICY="",
    )
    assert said == [
        "CONCERTINA_DATABASE__URL overrides database.url (concertina.yaml:3)",
        "CONCERTINA_MODELS__FAST__FALLBACKS overrides models.fast.fallbacks (concertina.yaml:5)",
        "CONCERTINA_PROVIDERS__OPEN_AI__API_KEY overrides providers.open-ai.api_key (concertina.yaml:4)",
        "CONCERTINA_PROVIDERS__OPEN_AI__HEADERS overrides providers.open-ai.headers.X-A (concertina.yaml:4)",
    ]


def test_what_only_the_file_of_defaults_says_may_be_overridden_without_a_word(file: Path, tmp_path: Path) -> None:
    defaults = tmp_path / "defaults.yaml"
    defaults.write_text("server: {port: 1, host: h}")
    environ = {"CONCERTINA_DEFAULTS": str(defaults), "CONCERTINA_SERVER__PORT": "2", "CONCERTINA_SERVER__HOST": "i"}
    assert overridden("server: {host: j}", file, **environ) == [
        "CONCERTINA_SERVER__HOST overrides server.host (concertina.yaml:1)"
    ]


def test_a_variable_that_sets_a_section_to_null_overrides_nothing(file: Path) -> None:
    text = "server: {port: 1}\nproviders: {a: {base_url: 'http://h/v1'}}"
    environ = {"CONCERTINA_SERVER": "null", "CONCERTINA_PROVIDERS__A": "null"}
    assert loaded(text, file, **environ) == loaded(text, file)
    assert overridden(text, file, **environ) == []


def test_changing_one_parameter_of_a_policy_keeps_the_others(file: Path) -> None:
    settings = loaded("policies: {additive: {threshold_ratio: 0.6}, mine: {buffer_turns: 2}}", file)
    assert settings.policies["additive"].threshold_ratio == 0.6
    assert settings.policies["additive"].fold_ratio == 0.3
    assert settings.policies["mine"].buffer_turns == 2


def test_adding_a_policy_keeps_the_built_in_ones(file: Path) -> None:
    assert set(loaded("policies: {mine: {}}", file).policies) == {*POLICY_KINDS, "mine"}


def test_a_section_whose_lines_are_all_commented_out_changes_nothing(file: Path) -> None:
    text = "server:\n#  port: 1\nproviders:\nmodels:\npolicies:\n  additive:\n    summarizer:\n"
    assert loaded(text, file) == Settings()


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "\ufeffpolicy: additive"])
def test_an_empty_file_is_a_file(text: str, file: Path) -> None:
    assert loaded(text, file) == Settings()


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("${KEY}", "sk-1"),
        ("${KEY:-other}", "sk-1"),
        ("${NONE:-other}", "other"),
        ("${EMPTY:-other}", "other"),
        ("${NONE:-}", ""),
        ("a-${KEY}-${KEY}", "a-sk-1-sk-1"),
        ("$${KEY}", "${KEY}"),
        ("pa$$word$", "pa$$word$"),
    ],
)
def test_variables_are_put_into_values(written: str, key: str, file: Path) -> None:
    text = f"providers: {{a: {{base_url: 'http://h/v1', api_key: '{written}'}}}}"
    secret = loaded(text, file, KEY="sk-1", EMPTY="").providers["a"].api_key
    assert secret is not None
    assert secret.get_secret_value() == key


def test_a_variable_holds_text_and_never_structure(file: Path) -> None:
    value = "x, port: 1}\nserver: {port: 2"
    assert loaded("server: {host: '${HOST}'}", file, HOST=value).server.host == value


def test_a_reference_to_nothing_is_refused_by_path_and_name(file: Path) -> None:
    told = refusal("providers:\n  a:\n    base_url: ${BASE}\n    api_key: ${KEY", file)
    assert "providers.a.base_url (concertina.yaml:3): the environment variable BASE is not set" in told
    assert "providers.a.api_key (concertina.yaml:4): '${KEY' is not a reference" in told


def test_numbers_and_claims_may_come_from_variables(file: Path) -> None:
    settings = loaded("{server: {port: '${P}'}, database: {auto_migrate: '${M}'}}", file, P="81", M="false")
    assert (settings.server.port, settings.database.auto_migrate) == (81, False)


def test_deep_settings_have_variables(file: Path) -> None:
    settings = loaded(
        OPENAI + "models: {gpt-4o-mini: {provider: openai}, big: {provider: openai}}",
        file,
        CONCERTINA_POLICIES__ADDITIVE__SUMMARIZER__MODEL="gpt-4o-mini",
        CONCERTINA_MODELS__GPT_4O_MINI__CONTEXT_WINDOW="1000",
        CONCERTINA_MODELS__BIG__FALLBACKS="[gpt-4o-mini]",
        CONCERTINA_POLICY="additive",
        CONCERTINA_DATABASE__URL="",
    )
    assert settings.policies["additive"].summarizer.model == "gpt-4o-mini"
    assert settings.models["gpt-4o-mini"].context_window == 1000
    assert settings.models["big"].fallbacks == ("gpt-4o-mini",)
    assert settings.database == Settings().database


def test_variables_alone_can_configure_a_provider() -> None:
    settings = load_settings(
        environ={
            "CONCERTINA_PROVIDERS__OPENAI__BASE_URL": "https://api.openai.com/v1",
            "CONCERTINA_PROVIDERS__OPENAI__API_KEY": "12345",
        }
    )
    assert settings.providers["openai"].base_url == "https://api.openai.com/v1"


def test_what_a_cluster_puts_into_the_environment_is_no_setting() -> None:
    tcp = "tcp://10.0.0.1:8000"
    names = ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_8000_TCP", "PORT_8000_TCP_ADDR"]
    assert load_settings(environ={f"CONCERTINA_{name}": tcp for name in names}) == Settings()


def test_the_key_of_a_client_in_the_same_environment_is_no_setting() -> None:
    assert load_settings(environ={"CONCERTINA_KEY": "ck_environment"}) == Settings()


def test_what_the_tests_are_told_is_no_setting_of_gateways_that_they_start() -> None:
    assert (
        load_settings(environ={"CONCERTINA_TEST_DATABASE_URL": "postgresql://db", "CONCERTINA_TEST_CHROMIUM": "/b"})
        == Settings()
    )


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("CONCERTINA_SERVER_PORT", "did you mean CONCERTINA_SERVER__PORT?"),
        ("CONCERTINA_SERVER__PROT", "did you mean CONCERTINA_SERVER__PORT?"),
        ("CONCERTINA_POLICIES__ADDITIVE__FOLD_RATE", "did you mean CONCERTINA_POLICIES__ADDITIVE__FOLD_RATIO?"),
        ("CONCERTINA_SERVER__PORT__X", "unknown variable"),
        ("CONCERTINA_SOMETHING_ELSE", "variables are named CONCERTINA_<SECTION>__<NAME>"),
    ],
)
def test_a_misspelt_variable_is_refused(variable: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=variable) as caught:
        load_settings(environ={variable: "1"})
    assert told in str(caught.value)


def test_a_file_may_refer_to_any_variable(file: Path) -> None:
    pepper = "a pepper of twenty-odd"
    settings = loaded("auth: {pepper: '${CONCERTINA_PEPPER}'}", file, CONCERTINA_PEPPER=pepper)
    assert settings.auth.pepper is not None
    assert settings.auth.pepper.get_secret_value() == pepper
    assert pepper not in repr(settings)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("{}", []),
        (f"compaction: {{capsule_key: [{'ab' * 32}]}}", [b"\xab" * 32]),
        (f"compaction: {{capsule_key: [{'ab' * 32}, {'AAAA' * 10}AAA=]}}", [b"\xab" * 32, b"\0" * 32]),
    ],
)
def test_capsules_have_one_key_several_or_none(text: str, keys: list[bytes], file: Path) -> None:
    assert loaded(text, file).compaction.capsule_key_bytes == keys


def test_a_bad_value_of_a_variable_names_the_variable() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(environ={"CONCERTINA_SERVER__PORT": "http", "CONCERTINA_MODELS": "[a", "CONCERTINA_AUTH": "open"})
    told = str(caught.value)
    assert "server.port (CONCERTINA_SERVER__PORT): expected a whole number, got 'http'" in told
    assert "models (CONCERTINA_MODELS): expected YAML in one line" in told
    assert "auth (CONCERTINA_AUTH): expected a section" in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("server: {prot: 1}", "server.prot (concertina.yaml:1): unknown setting; did you mean 'server.port'?"),
        ("servers: {}", "servers (concertina.yaml:1): unknown setting; did you mean 'server'?"),
        (
            "retention: {\n zzz: 1}",
            "retention.zzz (concertina.yaml:2): unknown setting; valid: 'context_hours', 'days'",
        ),
        ("threshold_ratio: 0.5", "unknown setting here; did you mean 'policies.<name>.threshold_ratio'?"),
        ("server: {port: 70000}", "server.port (concertina.yaml:1): expected less than or equal to 65535, got 70000"),
        ("server: {port: null}", "server.port (concertina.yaml:1): expected a whole number, got None"),
        ("server: [1]", "server (concertina.yaml:1): expected a section with keys of its own"),
        ("server: {host: 1}", "server.host (concertina.yaml:1): expected text (put numbers"),
        ("database: {auto_migrate: perhaps}", "expected true or false, got 'perhaps'"),
        ("database: {timeout_seconds: .inf}", "database.timeout_seconds (concertina.yaml:1): expected a finite number"),
        ("database: {timeout_seconds: 0}", "expected greater than 0, got 0"),
        ("database: {url: postgre://h/d}", "did you mean 'postgres://…'?"),
        ("database: {url: data/concertina.db}", "expected 'sqlite+aiosqlite:///FILE'"),
        ("database: {url: 'sqlite+aiosqlite://data.db'}", "expected a file after three slashes"),
        ("database: {url: 'sqlite:///:memory:'}", "in memory is 'memory://'"),
        ("database: {url: 'sqlite:///?mode=memory'}", "expected a file after three slashes"),
        ("{database: {url: 'memory://'}, server: {workers: 2}}", "several workers cannot share memory://"),
        ("auth: {pepper: short}", "auth.pepper (concertina.yaml:1): expected at least 16 characters"),
        ("compaction: {capsule_key: [short]}", "expected a key of 32 bytes in base64 or hex"),
        ("degraded_mode: serv", "expected 'serve' or 'refuse', got 'serv'; did you mean 'serve'?"),
        ("policy: aditive", "policy (concertina.yaml:1): there is no policy 'aditive'; did you mean 'additive'?"),
        ("providers: {'my provider': {}}", "expected a name of letters, digits"),
        ("providers:\n  a:\n", "providers.a.base_url (concertina.yaml:2): expected the address of an API"),
        ("providers: {a: {}}", "providers.a.base_url (concertina.yaml:1): expected the address of an API"),
        ("providers: {a: {base_url: 'api.openai.com/v1'}}", "did you mean https://api.openai.com/v1?"),
        ("providers: {a: {base_url: 'http:///v1'}}", "expected the address of an API"),
        ("providers: {a: {base_url: 'http://[::1/v1'}}", "expected the address of an API"),
        ("providers: {a: {base_url: 'http://h/v1/chat/completions'}}", "expected the part before '/chat/completions'"),
        ("providers: {a: {base_url: 'http://h/v1/responses/'}}", "expected the part before '/responses'"),
        (
            "providers: {a: {base_url: 'http://h/v1', api_key: 'sk-canary…'}}",
            "providers.a.api_key (concertina.yaml:1): contains '…', which is no ASCII character: is it a placeholder?",
        ),
        ("providers: {a: {base_url: 'http://h/v1', protocol: chat}}", "providers.a.protocol (concertina.yaml:1): "),
        (with_proxy("proxy.internal:3128"), "providers.a.proxy (concertina.yaml:1): expected the address of an HTTP"),
        (with_proxy("socks5://proxy.internal:1080"), "expected the address of an HTTP proxy"),
        (with_proxy("http://proxy.internal:3128/path"), "expected the address of an HTTP proxy"),
        (with_proxy("http://proxy internal:3128"), "expected the address of an HTTP proxy"),
        (with_proxy("http://user:pass/word@proxy.internal:3128"), "percent-encoded (%40 for '@')"),
        (with_proxy("http://user:12#word@proxy.internal:3128"), "percent-encoded (%40 for '@')"),
        (with_ca_file("/nowhere/ca.pem"), "cannot read '/nowhere/ca.pem': No such file or directory"),
        (with_ca_file("/"), "providers.a.ca_file (concertina.yaml:1): cannot read '/': Is a directory"),
        (with_ca_file("/dev/null"), "'/dev/null' holds no certificate in PEM form"),
        (with_ca_file("\\0"), "holds no certificate in PEM form"),
        ("models: {a: {provider: x}}", "models.a.provider (concertina.yaml:1): no provider is configured"),
        (OPENAI + "models: {a: {}}", "models.a.provider (concertina.yaml:2): missing: name a provider"),
        (OPENAI + "models: {a: {provider: opnai}}", "there is no provider 'opnai'; did you mean 'openai'?"),
        (
            OPENAI + "models: {a: {provider: openai, deployments: [{}, {provider: opnai}]}}",
            "models.a.deployments[1].provider (concertina.yaml:2): there is no provider 'opnai'",
        ),
        (OPENAI + "models: {a: {provider: openai, encoding: o200k}}", "did you mean 'o200k_base'?"),
        (OPENAI + "models: {gpt-4.1: {provider: openai, context_window: 0}}", 'models."gpt-4.1".context_window'),
        (
            OPENAI + "models: {gpt-4o: {provider: openai, fallbacks: [gpt4o]}, gpt-4: {provider: openai}}",
            "there is no model 'gpt4o'; did you mean 'gpt-4'?",
        ),
        (OPENAI + "models: {a: {provider: openai, fallbacks: [a]}}", "forms a cycle: 'a' → 'a'"),
        (
            OPENAI + "models: {a: {provider: openai, fallbacks: [b]}, b: {provider: openai, fallbacks: [a]}}",
            "models.a.fallbacks (concertina.yaml:2): forms a cycle: 'a' → 'b' → 'a'",
        ),
        (
            OPENAI + "models: {'*': {provider: openai, fallbacks: [b]}, b: {provider: openai, fallbacks: [other]}}",
            """models."*".fallbacks (concertina.yaml:2): forms a cycle: '*' → 'b' → 'other'""",
        ),
        (OPENAI + "models: {a: {provider: openai, fallbacks: [b, b]}, b: {provider: openai}}", "'b' is named twice"),
        (OPENAI + "models: {'*': {provider: openai, model: gpt-4o}}", "passes the requested name on"),
        ("providers: {a: {base_url: 'http://a'}, b: {base_url: 'http://b'}}", "several providers: say which has what"),
        ("policies: {additive: {kind: additve}}", "got 'additve'; did you mean 'additive'?"),
        ("policies: {additive: {threshold_ratio: 0.95}}", "expected less than 0.95, which is what reserve_ratio 0.05"),
        ("policies: {additive: {reserve_ratio: 1}}", "policies.additive.reserve_ratio"),
        ("policies: {additive: {fold_ratio: 0}}", "policies.additive.fold_ratio"),
        ("limits: {max_head_bytes: 9000}", "this setting is gone, and its value is always 65536; remove it"),
        ("policies: {additive: {buffer_max_ratio: 0.7}}", "expected less than threshold_ratio (0.7)"),
        ("policies: {additive: {fold_ratio: 0.8}}", "policies.additive.fold_ratio"),
        ("policies: {additive: {summarizer: {prompt: ' '}}}", "policies.additive.summarizer.prompt"),
        (OPENAI + "models: {a: {provider: openai}}\npolicies: {additive: {summarizer: {model: b}}}", "no model 'b'"),
        (
            OPENAI + "models: {a: {provider: openai}}\npolicies: {fade: {summarizer: {fallbacks: [a, b]}}}",
            "policies.fade.summarizer.fallbacks[1]",
        ),
        (OPENAI + "models: {a: {provider: openai, policy: prun}}", "there is no policy 'prun'; did you mean 'prune'?"),
        (
            OPENAI + "models: {a: {provider: openai}}\n"
            "policies: {additive: {recall_embeddings: {provider: opnai, model: small}}}",
            "there is no provider 'opnai'; did you mean 'openai'?",
        ),
        ("policies: {additive: {recall_embeddings: {model: small}}}", "missing: the provider of 'small'"),
        ("policies: {checkpoint: {trigger: {type: token_rato, value: 1}}}", "did you mean 'token_ratio'?"),
        ("policies: {checkpoint: {trigger: {type: token_ratio}}}", "policies.checkpoint.trigger.value"),
        ("policies: {checkpoint: {trigger: {type: token_ratio, value: 70}}}", "expected less than 1"),
        ("policies: {checkpoint: {trigger: {value: 0.7}}}", "policies.checkpoint.trigger.type"),
        ("policies: {fade: {stages: [mask_result]}}", "did you mean 'mask_results'?"),
        ("policies: {fade: {standing_ratio: 0.2}}", "this setting is gone; 'user_text_ratio' stands in its place"),
        ("policies: {fade: {hard_clear_ratio: 0.2}}", "this setting is gone, and its value is always 0.5; remove it"),
        ("models: {m: {price: {input: 1}}}", "models.m.price.output"),
        ("models: {m: {deployments: [{price: {cached_input: 1, output: 2}}]}}", "models.m.deployments[0].price.input"),
        ("models: {m: {price: {input: -1, output: 1}}}", "models.m.price.input"),
        ("models: {m: {cache: prefixes}}", "did you mean 'prefix'?"),
        (OPENAI + "models: {m: {provider: openai, cache: anthropic}}", "models.m.cache"),
        (
            OPENAI + "models: {m: {provider: openai, deployments: [{cache: anthropic}]}}",
            "'anthropic' has no form in the protocol of 'openai'",
        ),
        ("a: 1\na: 2", "a (concertina.yaml:2): given twice, first in line 1"),
        ("4: 1", "the key 4 is not text: put it in quotes"),
        ("server: {port: 1", "not valid YAML"),
        ("server:\n\tport: 1", "concertina.yaml:2: a tab where YAML needs spaces"),
        ("models: {*: {}}", "concertina.yaml:1: not valid YAML"),
        ("server: !!python/object:os.system {}", "not valid YAML"),
        ("a: &a [*a]", "the anchor 'a' contains itself"),
        ("- server", "expected sections such as 'server:' at the top"),
        ("just text", "expected sections such as 'server:' at the top"),
    ],
)
def test_what_is_wrong_is_told_with_its_remedy(text: str, told: str, file: Path) -> None:
    assert told in refusal(text, file)


def test_an_address_of_a_proxy_is_never_told(file: Path) -> None:
    assert "word" not in refusal(with_proxy("http://user:pass/word@proxy.internal:3128"), file).replace("password", "")


def test_neither_proxy_nor_ca_file_is_needed_where_their_variables_are_empty(file: Path) -> None:
    text = "providers: {a: {base_url: 'http://h/v1', proxy: '${HTTPS_PROXY:-}', ca_file: '${CA_FILE:-}'}}"
    assert build_providers(loaded(text, file))["a"].name == "a"
    assert "providers.a.ca_file" in refusal(text, file, CA_FILE="/nowhere/ca.pem")
    assert "providers.a.proxy" in refusal(text, file, HTTPS_PROXY="proxy.internal")
    assert loaded(text, file, HTTPS_PROXY="http://user:p%40ss@proxy.internal:3128/").providers["a"].proxy


def test_merge_keys_are_no_doubled_keys(file: Path) -> None:
    text = "providers:\n  a: &a {base_url: 'http://a', auth_header: x}\n  b: {<<: *a, base_url: 'http://b'}\n"
    providers = loaded(text + "models: {'*': {provider: a}}", file).providers
    assert (providers["b"].base_url, providers["b"].auth_header) == ("http://b", "x")


def test_everything_wrong_is_told_at_once(file: Path) -> None:
    text = "server: {port: x}\nprovider: {}\nmodels: {a: {provider: b, context_window: -1}}\npolicy: c\n"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_settings(str(file), environ={"CONCERTINA_AUTH__MODE": "none", "CONCERTINA_NONE": "1"})
    assert [fault.source for fault in caught.value.faults] == [
        "CONCERTINA_NONE",
        "concertina.yaml:1",
        "CONCERTINA_AUTH__MODE",
        "concertina.yaml:3",
        "concertina.yaml:2",
        "concertina.yaml:3",
        "concertina.yaml:4",
    ]


def test_one_mistake_is_told_once(file: Path) -> None:
    file.write_text("providers: {openai: 'https://api.openai.com/v1'}\nmodels: {a: {provider: openai}}")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(str(file), environ={})
    assert [fault.path for fault in caught.value.faults] == [("providers", "openai")]


def test_a_missing_file_is_told_without_a_trace() -> None:
    with pytest.raises(ConfigurationError, match=r"/nowhere/c\.yaml: cannot read the file: No such file"):
        load_settings("/nowhere/c.yaml", environ={})


def test_a_file_that_is_not_text_is_refused(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00policy")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        load_settings(str(file), environ={})


def test_no_secret_is_ever_shown(file: Path) -> None:
    secret = "hunter2hunter2"
    text = (
        f"database: {{url: 'postgresql+asyncpg://u:{secret}@h/d?password={secret}'}}\n"
        f"providers: {{a: {{base_url: 'http://h', api_key: {secret}, headers: {{x: {secret}}}, proxy: 'http://{secret}@p'}}}}"
    )
    settings = loaded(text, file)
    assert (
        secret
        not in repr(settings) + str(settings) + settings.model_dump_json() + settings.database.url_without_credentials
    )
    assert settings.database.url_without_credentials == "postgresql+asyncpg://h/d"
    wrong = (
        "server: {port: '${KEY}'}\n"
        f"providers: {{a: {{api_key: [{secret}], base_url: {secret}, apikey: {secret}}}, b: {secret}}}"
    )
    assert secret not in refusal(wrong, file, KEY=secret)


def test_settings_can_be_handed_to_another_process(file: Path) -> None:
    settings = loaded(OPENAI + "models: {'*': {provider: openai}}", file)
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().policy = "other"


def test_a_deployment_takes_from_its_model_what_it_leaves_out(file: Path) -> None:
    text = """
        providers: {a: {base_url: "http://a"}, b: {base_url: "http://b"}}
        models:
          m:
            provider: a
            context_window: 1000
            quirks: {merge_same_role: true}
            price: {input: 1, output: 2}
            deployments:
              - {}
              - {provider: b, model: n, quirks: {developer_to_system: true}, price: {input: 3, output: 4}}
        """
    first, second = loaded(text, file).models["m"].expand_deployments()
    assert (first.provider, first.model, first.context_window) == ("a", None, 1000)
    assert (second.provider, second.model, second.context_window) == ("b", "n", 1000)
    assert (second.quirks.merge_same_role, second.quirks.developer_to_system) == (True, True)
    assert (first.price.input, second.price.input) == (1, 3)


def test_quirks_of_a_model_win_where_they_are_set(file: Path) -> None:
    text = """
        providers: {a: {base_url: "http://a", quirks: {merge_same_role: true, stream_usage: false}}}
        models: {m: {provider: a, quirks: {merge_same_role: false}}}
        """
    settings = loaded(text, file)
    quirks = settings.models["m"].quirks.merge_over(settings.providers["a"].quirks)
    assert (quirks.merge_same_role, quirks.stream_usage) == (False, False)


keys = st.sampled_from(sorted({name for path in list_setting_paths() for name in path} | {"x"}))
values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
trees = st.recursive(values, lambda below: st.lists(below, max_size=3) | st.dictionaries(keys, below, max_size=4))


@given(st.dictionaries(keys, trees, max_size=5))
def test_any_values_are_either_taken_or_refused_with_faults(tree: dict[str, object]) -> None:
    try:
        settings = load_settings(environ={}, arguments={(key,): value for key, value in tree.items()})
    except ConfigurationError as error:
        assert error.faults
        assert all(fault.message for fault in error.faults)
    else:
        assert isinstance(settings, Settings)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("value", [[[0.9]], [[]], [{}], {}, {"x": {}}, {"x": [{}]}, "x", -1, None], ids=str)
def test_each_setting_takes_or_refuses_each_value(value: object) -> None:
    """An error that pydantic reports below a value, such as a missing element of a list, ends the search for faults."""
    for path in list_setting_paths():
        place: SettingPath = tuple("x" if key.startswith("<") else key for key in path)
        try:
            load_settings(environ={}, arguments={place: copy.deepcopy(value)})
        except ConfigurationError as error:
            assert error.faults


@given(st.text(max_size=200))
def test_any_text_is_either_taken_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(text, encoding="utf-8", errors="replace")
    try:
        load_settings(str(file), environ={})
    except ConfigurationError as error:
        assert error.faults


def test_settings_have_the_names_and_defaults_of_what_they_set() -> None:
    settings = Settings()
    assert RetryPolicy(**settings.retries.model_dump()) == RetryPolicy()
    assert UpstreamQuirks(**Quirks().model_dump()) == UpstreamQuirks()
    assert build_policy(settings, "additive") == ContextPolicy()
    assert set(POLICY_KINDS) == set(STAGES_OF_KIND)
    assert set(get_args(Stage)) >= {stage for stages in STAGES_OF_KIND.values() for stage in stages}
    assert set(get_args(Encoding)) == set(VOCABULARIES)
    assert settings.window_default == DEFAULT_WINDOW_TOKENS


def test_a_key_from_a_file_loses_its_line_end_and_may_not_have_another(file: Path) -> None:
    text = 'providers: {a: {base_url: "http://h/v1", api_key: "${KEY}"}}'
    key = loaded(text, file, KEY="sk-1\n").providers["a"].api_key
    assert key is not None
    assert key.get_secret_value() == "sk-1"
    refused = refusal(text, file, KEY="sk\n1")
    assert "providers.a.api_key" in refused
    assert "one line" in refused


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: " + "x" * 1024 * 1024, "too long: at most 1,048,576 characters"),
        ("a: " + "[" * 100_000, "nested too deeply: at most 32 levels"),
        ("a: " + "{a: " * 50_000, "nested too deeply: at most 32 levels"),
        ("? " + "[" * 3000 + "]" * 3000 + "\n: 1", "nested too deeply: at most 32 levels"),
        ("a: &a\n  b: *a\n  <<: *a", "the anchor 'a' contains itself"),
        (f"server: {{port: {'9' * 5000}}}", "server.port (concertina.yaml:1): expected a number or a date that exists"),
        ("server: {host: 2026-99-99}", "server.host (concertina.yaml:1): expected a number or a date that exists"),
        ("2026-99-99: 1", "expected a key that is text"),
    ],
    ids=lambda text: text[:24],
)
def test_a_file_that_would_take_long_to_read_is_refused_at_once(text: str, told: str, file: Path) -> None:
    began = time.process_time()
    assert told in refusal(text, file)
    assert time.process_time() - began < 2


@pytest.mark.parametrize("text", ["[" * 50_000, "x" * 1024 * 1024])
def test_a_variable_that_would_take_long_to_read_is_refused_at_once(text: str) -> None:
    began = time.process_time()
    with pytest.raises(ConfigurationError, match="CONCERTINA_MODELS"):
        load_settings(environ={"CONCERTINA_MODELS": f"{{{text}}}"})
    assert time.process_time() - began < 2


def test_aliases_and_merge_keys_are_read(file: Path) -> None:
    told = "{base_url: 'http://a/v1', api_key: k}\n  b: {<<: *one, base_url: 'http://b/v1'}\n  c: *one\n"
    settings = loaded(f"providers:\n  a: &one {told}models: {{'*': {{provider: a}}}}\n", file)
    assert [one.base_url for one in settings.providers.values()] == ["http://a/v1", "http://b/v1", "http://a/v1"]


def test_a_provider_is_called_by_its_protocol(file: Path) -> None:
    text = "providers: {a: {base_url: 'http://h/v1'}, b: {base_url: 'http://h/v1', protocol: responses}}\n"
    providers = build_providers(loaded(text + "models: {'*': {provider: a}}", file))
    assert {name: provider.protocol for name, provider in providers.items()} == {"a": "openai", "b": "responses"}


def test_a_setting_that_is_gone_names_the_value_that_planning_uses() -> None:
    values: list[Any] = [TRIMMING_LIMITS, CutPolicy(), QuotationPolicy(), CompactionPolicy(), ContextPolicy()]
    kept = {
        "policies": {name: value for section in values for name, value in asdict(section).items()},
        "retries": asdict(RetryPolicy()),
        "limits": asdict(ConnectionLimits()),
    }
    for section in kept:
        removed = REMOVED_SETTINGS[section]
        assert {name: kept[section][name] for name in removed} == removed
    assert not set(REMOVED_SETTINGS["policies"]) & set(Policy.model_fields)
    assert not set(REMOVED_SETTINGS["retries"]) & set(Retries.model_fields)
    assert not set(REMOVED_SETTINGS["limits"]) & set(Limits.model_fields)
    with pytest.raises(ConfigurationError, match=r"RETRIES__MAX_SECONDS: .*its value is always 8\.0; remove it"):
        load_settings(environ={"CONCERTINA_RETRIES__MAX_SECONDS": "3"})
    with pytest.raises(ConfigurationError, match=r"its value is always 0\.2; remove it"):
        load_settings(environ={"CONCERTINA_POLICIES__MINE__OLDEST_SHARE": "0.3"})
