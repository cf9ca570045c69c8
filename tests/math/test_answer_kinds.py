"""Units in two parts, times of day, vectors, numbered solutions, sets, words and marks: what is the same answer."""

from __future__ import annotations

import pytest

from marft_envs.families.math.grader import grade

SAME = [
    # an amount in two or three units is one amount
    (r"5\text{ ft }3\text{ in}", r"63\text{ inches}"), (r"5\text{ ft }3\text{ in}", r"5'3''"), ('5\' 3"', r"5'3''"),
    (r"5\text{ feet and }3\text{ inches}", r"5.25\text{ ft}"), (r"5\text{ feet, }3\text{ inches}", r"5 ft. 3 in."),
    (r"5\text{ ft }6\frac12\text{ in}", r"66.5\text{ in}"), (r"2\text{ hours }15\text{ minutes}", r"135\text{ minutes}"),
    (r"2\text{ hours }15\text{ minutes}", r"\frac94\text{ hours}"), (r"2\text{ hours and }15\text{ minutes}", r"2h15m"),
    (r"2\text{ hours }15\text{ minutes}", r"2\text{ h }15\text{ min}"), (r"2.25\text{ hours}", r"2 hr, 15 min"),
    (r"3\text{ lb }8\text{ oz}", r"56\text{ oz}"), (r"3\text{ years }9\text{ months}", r"45\text{ months}"),
    (r"7\text{ dollars and }30\text{ cents}", r"\$7.30"), (r"4\text{ min }10\text{ s}", r"250\text{ seconds}"),
    (r"2\text{ weeks }4\text{ days}", r"18\text{ days}"), (r"2\text{ m }35\text{ cm}", r"2.35\text{ m}"),
    (r"1\text{ day }2\text{ hours }30\text{ minutes}", r"26.5\text{ hours}"), (r"20^\circ 45'", r"20.75^\circ"),
    (r"20^\circ45'36''", r"20.76^\circ"), (r"20^\circ 45^{\prime}", r"20°45'"), (r"9'", r"9\text{ ft}"), (r"9''", r"9\text{ in}"),
    # a unit as a fraction
    (r"72\text{ km/h}", r"72\ \frac{\text{km}}{\text{h}}"), (r"72\text{ km/h}", r"72\,\mathrm{\frac{km}{h}}"),
    (r"72\text{ km/h}", r"20\ \frac{\text{m}}{\text{s}}"), (r"72\text{ km/h}", r"\frac{72\text{ km}}{1\text{ h}}"),
    (r"3\text{ m/s}^2", r"3\ \frac{\text{m}}{\text{s}^2}"), (r"5\text{ apples/box}", r"5\ \frac{\text{apples}}{\text{box}}"),
    # times of day
    (r"12:45\text{ AM}", r"00:45"), (r"12:45\text{ a.m.}", r"0:45"), (r"8:20\text{ a.m.}", r"08:20"), (r"8:20\text{ PM}", r"20:20"),
    (r"\text{noon}", r"12:00\text{ PM}"), (r"12\text{ noon}", r"\text{noon}"), (r"12:00\text{ noon}", r"12\text{ p.m.}"),
    (r"\text{midnight}", r"12:00\text{ AM}"), (r"12\text{ midnight}", r"00:00"), (r"08:20", r"8:20"),
    # vectors
    (r"5\mathbf{i}+2\mathbf{j}", r"5\hat{i}+2\hat{j}"), (r"5\mathbf{i}+2\mathbf{j}", r"\langle 5,2\rangle"), (r"5\mathbf i+2\mathbf j", r"5i+2j"),
    (r"5\mathbf{i}+2\mathbf{j}", r"2\vec j+5\vec i"), (r"5\mathbf{i}+2\mathbf{j}", r"5\hat{\imath}+2\hat{\jmath}"),
    (r"5\mathbf{i}-\mathbf{j}+7\mathbf{k}", r"\langle5,-1,7\rangle"), (r"⟨5,2⟩", r"<5,2>"), (r"\langle 4,0,1\rangle", r"4\hat{\mathbf{i}}+\hat{\mathbf{k}}"),
    (r"\frac{5}{13}\mathbf{i}+\frac{12}{13}\mathbf{j}", r"(\frac5{13},\frac{12}{13})"), (r"t\mathbf{i}+t^2\mathbf{j}", r"\langle t,t^2\rangle"),
    (r"\mathbf{v}=5\mathbf{i}+2\mathbf{j}", r"\langle5,2\rangle"), (r"4+7i", r"7i+4"), (r"3\pi k", r"3k\pi"),
    # numbered solutions
    (r"x=5\text{ or }x=-1", r"x_1=5, x_2=-1"), (r"x=5\text{ or }x=-1", r"x_{1}=-1,\ x_{2}=5"), (r"t=1,t=4,t=9", r"t_1=1,t_2=4,t_3=9"),
    (r"x=\pm 6", r"x_1=6, x_2=-6"), (r"5,-1", r"x_1=5, x_2=-1"),
    # words and marks
    (r"\text{does not exist}", r"\text{DNE}"), (r"\text{DNE}", r"\text{the limit does not exist}"), (r"\infty", r"\text{infinity}"),
    (r"-\infty", r"\text{negative infinity}"), (r"-\infty", r"-\text{infinity}"), (r"(4,\infty)", r"(4,\text{infinity})"), (r"[4,\infty)", r"[4, inf)"),
    (r"57_{10}", r"57"), (r"57", r"57_{\text{ten}}"), (r"57", r"(57)_{10}"), (r"57", r"\underbrace{57}_{\text{total}}"), (r"y+4", r"\underbrace{y}_{a}+\overbrace{4}^{b}"),
    (r"57", r"\cancel{3}57"), (r"40\%", r"0.4"), (r"40", r"40\%"), (r"33\frac13", r"33\frac13\%"), (r"60", r"60^\circ"), (r"\frac\pi4", r"45^\circ"),
    (r"\frac\pi4\text{ rad}", r"45^\circ"), (r"\{7\}", r"7"), (r"\{\{1,4\},\{6\}\}", r"\{\{6\},\{4,1\}\}"), (r"\{\emptyset\}", r"\{\{\}\}"),
    (r"[2,4]\cup\{7\}", r"\{7\}\cup[2,4]"), (r"|x|<8", r"(-8,8)"),
]  # fmt: skip
OTHER = [
    (r"5\text{ ft }3\text{ in}", r"3\text{ ft }5\text{ in}"), (r"5\text{ ft }3\text{ in}", r"5.3\text{ ft}"), (r"5\text{ ft }3\text{ in}", r"3'5''"),
    (r"2\text{ hours }15\text{ minutes}", r"2.15\text{ hours}"), (r"2\text{ km }50\text{ m}", r"2500\text{ m}"), (r"9", r"9'"), (r"9", r"9''"),
    (r"9", r"9^\prime"), (r"9\text{ ft}", r"9''"), (r"72\text{ km/h}", r"72\ \frac{\text{m}}{\text{s}}"), (r"72\text{ km/h}", r"\frac{72\text{ h}}{\text{km}}"),
    (r"12:45\text{ AM}", r"12:45"), (r"12:45\text{ PM}", r"00:45"), (r"8:20\text{ p.m.}", r"08:20"), (r"8:20\text{ a.m.}", r"8:20"),
    (r"\text{noon}", r"12:00\text{ AM}"), (r"\text{noon}", r"00:00"), (r"5\mathbf{i}+2\mathbf{j}", r"2\hat{i}+5\hat{j}"),
    (r"5\mathbf{i}+2\mathbf{j}", r"5\hat{i}-2\hat{j}"), (r"5\mathbf{i}+2\mathbf{j}", r"\langle 2,5\rangle"), (r"5\mathbf{i}+2\mathbf{k}", r"\langle 5,2\rangle"),
    (r"x=5\text{ or }x=-1", r"x_1=5, x_2=1"), (r"x=5\text{ or }x=-1", r"y_1=5, y_2=-1"), (r"a_1=5, a_2=6", r"a_1=6, a_2=5"), (r"a_3=5,a_7=6", r"a_3=6,a_7=5"),
    (r"\text{does not exist}", r"0"), (r"\text{does not exist}", r"\infty"), (r"\text{does not exist}", r"\text{exists}"), (r"\infty", r"-\text{infinity}"),
    (r"\text{infinitely many}", r"\infty"), (r"57", r"57_8"), (r"57", r"57_{100}"), (r"57", r"\underbrace{58}_{57}"), (r"57", r"\cancel{57}"),
    (r"\underbrace{1\cdots1}_{8}", r"\underbrace{1\cdots1}_{9}"), (r"40\%", r"0.4\%"),
    (r"\frac\pi4", r"\frac\pi4^\circ"), (r"3\pi", r"3\pi^\circ"), (r"0.7\text{ rad}", r"0.7^\circ"), (r"\emptyset", r"\{\emptyset\}"), (r"\emptyset", r"\{\{\}\}"),
    (r"\{4,5,6\}", r"\{\{4,5,6\}\}"), (r"\{4,5\}", r"\{4\},\{5\}"), (r"\{7\}", r"\{\{7\}\}"), (r"7", r"\{\{7\}\}"), (r"\{\{1,4\},\{6\}\}", r"\{\{1,6\},\{4\}\}"),
    (r"[2,4]\cup\{7\}", r"[2,4]\cup[7]"), (r"[2,4]\cup\{7\}", r"[2,4]\cup(7)"),
]  # fmt: skip
SOLVED = {
    r"|x-7|<4": ([r"3<x<11", r"(3,11)", r"x\in(3,11)", r"|7-x|<4"], [r"[3,11]", r"x<11", r"7-x<4", r"-3<x<11"]),
    r"|2x+3|\ge 5": ([r"x\le-4\text{ or }x\ge1", r"(-\infty,-4]\cup[1,\infty)"], [r"(-\infty,-4)\cup(1,\infty)", r"[-4,1]"]),
    r"6>|1-x|": ([r"-5<x<7"], [r"-7<x<5"]),
    r"|x-1|\le\sqrt3": ([r"[1-\sqrt3,1+\sqrt3]"], [r"[-\sqrt3,\sqrt3]"]),
    r"(3,11)": ([r"3<x<11"], [r"|x-7|<4"]),
    r"3<x<11": ([r"(3,11)"], [r"|x-7|<4"]),
}  # fmt: skip
"""Gold -> what is right, and what is wrong; an inequality that is not solved is no solution."""


PERCENT = {
    r"\frac25": {r"0.4\%", r"4\%"}, "0.4": {r"0.4\%"}, "1": {r"1\%"}, r"\frac{\sqrt3}{2}": {r"\frac{\sqrt3}{2}\%"},
}  # fmt: skip
"""Gold -> what is a hundredth of it."""


def right(pred: str, gold: str) -> bool:
    return grade(f"\\boxed{{{pred}}}", gold).score == 1.0


@pytest.mark.parametrize(("first", "second"), SAME)
def test_one_answer_in_two_notations_is_right_both_ways(first: str, second: str) -> None:
    assert right(second, first) and right(first, second)


@pytest.mark.parametrize(("first", "second"), OTHER)
def test_another_answer_in_a_like_notation_is_wrong_both_ways(first: str, second: str) -> None:
    assert not right(second, first) and not right(first, second)


@pytest.mark.parametrize("gold", SOLVED)
def test_the_solutions_of_an_inequality_with_an_absolute_value(gold: str) -> None:
    same, other = SOLVED[gold]
    assert {pred for pred in same if not right(pred, gold)} == set()
    assert {pred for pred in other if right(pred, gold)} == set()


@pytest.mark.parametrize("gold", PERCENT)
def test_a_percent_sign_divides_a_gold_answer_up_to_one(gold: str) -> None:
    assert {pred for pred in PERCENT[gold] if right(pred, gold)} == set()


@pytest.mark.parametrize(
    "text",
    [r"|\text{speed}|<5", r"|x|<\infty", r"|f(x|<3", "|x-1|<y", r"|x!|<3", r"|9^{9^{9^9}}x|<2", r"|x|<9^{9^{9^9}}"],
)
def test_an_odd_inequality_is_graded_without_an_exception(text: str) -> None:
    assert grade(f"\\boxed{{{text}}}", "(-1,1)").score == grade(r"\boxed{(-1,1)}", text).score == 0.0
