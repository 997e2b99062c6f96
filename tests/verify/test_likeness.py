"""Rounding is told from another state: by the likeliest tokens at the place where two answers part."""

from k3stack.verify.answer import Answer, TokenChance
from k3stack.verify.likeness import alike

TOP = (("a", -1.0), ("b", -1.1), ("c", -2.0), ("d", -2.5), ("e", -3.0))


def chance(token: str, top: tuple[tuple[str, float], ...] = TOP) -> TokenChance:
    return TokenChance(token, dict(top)[token], top)


def answer(*chances: TokenChance) -> Answer:
    return Answer({}, "", content="".join(one.token for one in chances), chances=chances)


def test_a_near_tie_that_falls_the_other_way_is_rounding() -> None:
    moved = (("b", -1.02), ("a", -1.05), ("c", -2.1), ("e", -2.6), ("f", -2.7))
    assert alike(answer(chance("a"), chance("a")), answer(chance("a"), chance("b", moved)))


def test_behind_that_everything_may_differ() -> None:
    other = tuple((f"x{number}", -1.0 - number) for number in range(5))
    assert alike(answer(chance("a"), chance("a")), answer(chance("b"), chance("x0", other)))


def test_another_prompt_is_no_rounding() -> None:
    other = (("x", -0.9), ("y", -1.0), ("z", -1.2), ("a", -1.3), ("w", -3.0))
    assert not alike(answer(chance("a")), answer(chance("x", other)))


def test_a_token_that_was_far_off_is_no_rounding() -> None:
    far = (("e", -0.2), ("a", -3.0), ("b", -3.1), ("c", -4.0), ("d", -4.5))
    assert not alike(answer(chance("a")), answer(chance("e", far)))


def test_without_chances_nothing_is_excused() -> None:
    assert not alike(answer(), answer(chance("a"))) and not alike(answer(chance("a")), answer())


def test_an_endpoint_that_gives_one_chance_is_judged_by_it() -> None:
    one = (("a", -1.0),)
    assert alike(answer(chance("a", one)), answer(chance("a", (("a", -1.1),))))
    assert not alike(answer(chance("a", one)), answer(chance("b", (("b", -1.1),))))
