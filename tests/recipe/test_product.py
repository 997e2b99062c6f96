"""Every selection either renders to commands that its release's parser takes, or is refused with a reason."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack.engines.rules import rules
from k3stack.errors import K3Error, NotKnownError, UsageError
from k3stack.hardware.table import gpu, gpus
from k3stack.plan.layout import KvDtype, Layout, Workload
from k3stack.recipe.asking import check
from k3stack.recipe.build import build
from k3stack.recipe.choice import Choice, Feature, Goal, Serving, refused
from k3stack.recipe.link import from_query, to_query
from k3stack.recipe.options import options
from k3stack.recipe.render import Form, render, skypilot
from k3stack.spec.schemes import Scheme
from k3stack.values import dump, load
from tests.recipe.product import product, releases


def judge(choice: Choice) -> bool:
    """Whether it is allowed; if so it must build, parse and render, if not it must say why."""
    against = refused(choice)
    if against:
        for refusal in against:
            assert refusal.reason.why.endswith(".") and refusal.fix and refusal.reason.source
        with pytest.raises(NotKnownError):
            build(choice)
        return False
    deployment = build(choice)
    verdict = check_by_snapshot(deployment)
    assert not verdict, (choice, verdict)
    return True


def check_by_snapshot(deployment: object) -> dict[str, str]:
    from unittest import mock

    with mock.patch("k3stack.recipe.asking.find_python", return_value=None):
        return check(deployment).errors  # type: ignore[arg-type]


def test_a_sample_of_the_product() -> None:
    chosen = list(itertools.islice(product(), 0, None, 97))
    allowed = sum(judge(choice) for choice in chosen)
    print(f"{len(chosen)} of the product: {allowed} allowed")
    assert allowed > 100 and len(chosen) - allowed > 100


@pytest.mark.slow
def test_the_whole_product(capsys: pytest.CaptureFixture[str]) -> None:
    """Refusals are counted, what is allowed is built and parsed, and one in fifty is rendered in every form."""
    counts = {"refused": 0, "allowed": 0}
    used: set[str] = set()
    for choice in product():
        if refused(choice):
            counts["refused"] += 1
            continue
        deployment = build(choice)
        counts["allowed"] += 1
        assert not check_by_snapshot(deployment), choice
        for role in deployment.roles:
            used |= {flag.reason.rule for flag in role.command.flags}
            used |= {reason.rule for flag in role.command.flags for reason in flag.also}
            used |= {variable.reason.rule for variable in role.command.environment}
        used.add(deployment.image_reason.rule)
        if counts["allowed"] % 50 == 0:
            for form in Form:
                if form is Form.SKYPILOT and deployment.gpu not in skypilot.NAMES:
                    with pytest.raises(NotKnownError):
                        render(deployment, form)
                else:
                    assert render(deployment, form)
    with capsys.disabled():
        print(f"\nthe product: {counts['allowed']:,} selections render and parse, {counts['refused']:,} are refused")
    assert counts["allowed"] > 5_000
    shaping = {
        rule.id
        for engine in ("vllm", "sglang")
        for rule in rules(engine)
        if (rule.set or rule.env or rule.image) and not rule.is_check
    }
    overruled = {"vllm-no-prefix-caching"}
    assert shaping - used <= overruled, "these rules never have a say"


CHOICES = st.builds(
    lambda engine, version, hardware, scheme, layout, goal, serving, features, kv: Choice(
        engine,
        releases(engine)[version % len(releases(engine))],
        gpu(hardware),
        scheme,
        layout,
        Workload(kv_dtype=kv),
        goal,
        serving,
        layout if serving is Serving.DISAGGREGATED else None,
        tuple(sorted(features)),
    ),
    st.sampled_from(["vllm", "sglang"]),
    st.integers(0, 20),
    st.sampled_from(sorted(gpus())),
    st.sampled_from(list(Scheme)),
    st.builds(
        lambda tp, pp, dp, ep, share: Layout(tp, pp, dp, ep, tp if share else 1),
        st.sampled_from([1, 2, 4, 8, 16, 32]),
        st.sampled_from([1, 2, 4, 16]),
        st.sampled_from([1, 2, 8, 16]),
        st.booleans(),
        st.booleans(),
    ),
    st.sampled_from(list(Goal)),
    st.sampled_from(list(Serving)),
    st.frozensets(st.sampled_from(list(Feature)), max_size=3),
    st.sampled_from(list(KvDtype)),
)


@given(CHOICES)
def test_whatever_is_asked_is_judged(choice: Choice) -> None:
    judge(choice)


@given(CHOICES)
def test_no_path_around_the_judge(choice: Choice) -> None:
    """A saved link and JSON come to the same choice, and so to the same verdict."""
    assert from_query(to_query(choice)) == choice
    assert load(Choice, json.loads(json.dumps(dump(choice)))) == choice


@given(st.text(alphabet="abcdefgh=&,%0123456789tpkv-", max_size=80))
def test_a_broken_link_is_an_error(text: str) -> None:
    with pytest.raises(K3Error):
        from_query(text)


def test_a_link_to_what_is_not_allowed_is_refused() -> None:
    """The upstream panel renders this one: NVFP4 kept in a link while the hardware becomes H200."""
    good = Choice(
        "sglang", "0.5.23", gpu("b300"), Scheme.NVFP4_MIXED, Layout(tp=8, dcp=8), Workload(kv_dtype=KvDtype.BF16)
    )
    assert not refused(good)
    stale = from_query(to_query(good).replace("hardware=b300", "hardware=h200"))
    with pytest.raises(NotKnownError, match="Blackwell"):
        build(stale)


@pytest.mark.parametrize("field", ["engine", "layout", "goal"])
def test_a_link_without_a_field_names_it(field: str) -> None:
    link = to_query(Choice("vllm", "0.33.0", gpu("b300"), Scheme.MXFP4, Layout(tp=8)))
    parts = [part for part in link.split("&") if not part.startswith(f"{field}=")]
    with pytest.raises(UsageError) as caught:
        from_query("&".join(parts))
    assert caught.value.where == field


def test_every_option_that_is_not_allowed_has_a_reason_and_the_others_work() -> None:
    from k3stack.recipe.choice import with_values

    choice = Choice("vllm", "0.33.0", gpu("b300"), Scheme.MXFP4, Layout(tp=8))
    offered = options(choice)
    dimensions = {"hardware", "scheme", "goal", "serving", "version", "feature", "parsers"}
    assert {option.dimension for option in offered} == dimensions
    by_value = {(option.dimension, option.value): option for option in offered}
    assert "H100" in by_value["hardware", "h100"].reason
    assert by_value["feature", "dflash"].reason and not by_value["feature", "dspark"].reason
    assert by_value["parsers", "kimi_k2"].reason and not by_value["parsers", "raw"].reason
    for option in offered:
        if option.dimension == "hardware":
            changed = with_values(choice, {"gpu": gpu(option.value)})
            assert bool(refused(changed)) == bool(option.reason)
