"""Membership inference from losses: the attack by hand, its intervals by simulation, its controls and its refusals."""

import json
import math

import numpy as np
import pytest
from scipy.stats import binom, mannwhitneyu, norm
from sklearn.metrics import roc_auc_score, roc_curve

from audits.methods.contract import Bound, Result
from audits.methods.errors import UnsuitableInput
from audits.methods.privacy import loss_membership
from audits.methods.privacy.loss_membership import (
    METHOD,
    attack,
    audit,
    example,
    figures,
    mann_whitney_p,
    non_members_needed,
    null_spread,
    planted_shift,
    roc_with_band,
    shared_ranks,
    shuffled_attacks,
    split_advantage,
    tpr_at_fpr,
)
from audits.methods.stats import binomial_tail, clopper_pearson
from audits.methods.verdict import Verdict, judge

ALMOST_NEVER = 1e-4  # a simulation may miss its bound this rarely if the code is right


def gaussian_losses(rng, n1, n0, shift):
    """Sorted losses of members N(-shift, 1) and non-members N(0, 1)."""
    return np.sort(rng.normal(-shift, 1, n1)), np.sort(rng.normal(0, 1, n0))


def both(member, other):
    return np.concatenate([member, other]), np.repeat([1, 0], [member.size, other.size])


def bound_of(name):
    return next(bound for bound in METHOD.bounds if bound.measurement == name)


# by hand


def test_attack_on_six_records_by_hand():
    # Losses 1..6, members at 1, 2 and 4. Member below non-member: 3 + 3 + 2 of 9 pairs.
    # TPR - FPR is largest after 2 (2/3 - 0) and after 4 (1 - 1/3). No false positive before 3: two of three members.
    members = np.array([[True, True, False, True, False, False]])
    found = attack(members, shared_ranks(np.arange(1.0, 7.0)))
    assert found.auc[0] == pytest.approx(8 / 9, abs=1e-12)
    assert found.advantage[0] == pytest.approx(2 / 3, abs=1e-12)
    assert found.tpr[0] == pytest.approx([2 / 3, 2 / 3], abs=1e-12)


def test_tied_losses_are_not_split_by_a_threshold():
    # Losses 1 1 2 2 with one member in each pair: every comparison is a tie or cancels; no threshold separates a pair.
    found = attack(np.array([[True, False, True, False]]), shared_ranks(np.array([1.0, 1, 2, 2])))
    assert found.auc[0] == 0.5
    assert found.advantage[0] == 0
    assert found.tpr[0] == pytest.approx([0, 0])


def test_low_rate_interval_by_hand():
    # 500 non-members, 1 %: P(Bin = 0) = .99^500 = .0066 < .0125 <= P(Bin <= 1), so the lower threshold is the smallest
    # non-member (0.0); P(Bin <= 10) < .9875 <= P(Bin <= 11), so the upper one is the twelfth smallest (11.0).
    assert binom.cdf([0, 1, 10, 11], 500, 0.01) == pytest.approx([0.00657, 0.03976, 0.98676, 0.99479], abs=1e-5)
    other = np.arange(500.0)
    member = np.sort(np.concatenate([np.full(30, -1.0), np.full(20, 3.5), np.full(50, 10.5), np.full(100, 1000.0)]))
    value, low, high = tpr_at_fpr(member, other, 0.01, 0.95)
    assert value == 50 / 200  # below the sixth smallest non-member, 5.0
    assert low == clopper_pearson(30, 200, 0.975).low
    assert high == clopper_pearson(100, 200, 0.975).high


@pytest.mark.parametrize(("fpr", "needed"), [(0.01, 437), (0.001, 4380)])
def test_lower_bound_leaves_zero_exactly_at_the_number_of_non_members_said(fpr, needed):
    assert non_members_needed(fpr, 0.95) == needed
    member = np.full(100, -1.0)
    assert tpr_at_fpr(member, np.arange(float(needed)), fpr, 0.95).low > 0.9
    assert tpr_at_fpr(member, np.arange(float(needed - 1)), fpr, 0.95).low == 0


def test_planted_shift_gives_the_auc_it_says():
    # Two independent standard normals: AUC = Phi(shift / sqrt 2), so 0.75 needs sqrt 2 * Phi^-1(0.75) = 0.9539.
    losses = norm.ppf((np.arange(2000) + 0.5) / 2000)
    assert planted_shift(losses, 0.75) == pytest.approx(math.sqrt(2) * norm.ppf(0.75), abs=0.01)


# agreement with libraries


@pytest.mark.parametrize("decimals", [8, 1])
def test_agrees_with_scikit_learn_and_scipy(decimals):
    rng = np.random.default_rng(3)
    member, other = (np.sort(side.round(decimals)) for side in gaussian_losses(rng, 700, 1300, 0.6))
    losses, is_member = both(member, other)
    shared = shared_ranks(losses)
    found = attack(is_member[np.argsort(losses, kind="stable")].astype(bool)[None], shared)
    fpr, tpr, _ = roc_curve(is_member, -losses, drop_intermediate=False)
    assert found.auc[0] == pytest.approx(roc_auc_score(is_member, -losses), abs=1e-12)
    assert found.advantage[0] == pytest.approx((tpr - fpr).max(), abs=1e-12)
    for column, rate in enumerate(loss_membership.LOW_FPRS):
        expected = tpr[fpr <= rate].max()
        assert found.tpr[0, column] == pytest.approx(expected, abs=1e-12)
        assert tpr_at_fpr(member, other, rate, 0.95).value == pytest.approx(expected, abs=1e-12)
    p_value = mann_whitney_p(found.auc, null_spread(shared, 700, 1300), 700, 1300)[0]
    theirs = mannwhitneyu(-member, -other, alternative="greater", method="asymptotic").pvalue
    assert p_value == pytest.approx(theirs, rel=1e-9)


# null


def test_shuffled_membership_alarms_at_its_rate_and_centres_on_chance():
    rng = np.random.default_rng(5)
    shared = shared_ranks(rng.gamma(0.5, 1, 400).round(2))
    null = shuffled_attacks(shared, 150, 250, 4000, rng, lambda share, words: None)
    spread = null_spread(shared, 150, 250)
    assert null.auc.mean() == pytest.approx(0.5, abs=4 * spread / math.sqrt(4000))
    assert null.auc.std() == pytest.approx(spread, rel=0.05)
    alarms = int((mann_whitney_p(null.auc, spread, 150, 250) <= 0.05).sum())
    assert binomial_tail(alarms, 4000, 0.05) > ALMOST_NEVER
    assert alarms > 0.03 * 4000  # and not because the test never calls


def test_split_advantage_is_centred_on_zero_and_calibrated_where_nothing_leaks():
    rng = np.random.default_rng(6)
    found = [split_advantage(*gaussian_losses(rng, 80, 120, 0.0), 0.95, rng) for _ in range(400)]
    assert np.mean([one.value for one in found]) == pytest.approx(0, abs=0.02)
    assert binomial_tail(sum(one.p_value <= 0.05 for one in found), 400, 0.05) > ALMOST_NEVER
    assert binomial_tail(sum(not one.low <= 0 <= one.high for one in found), 400, 0.06) > ALMOST_NEVER


def test_no_leak_gives_no_evidence_of_one():
    wrong = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        losses, is_member = both(*gaussian_losses(rng, 150, 150, 0.0))
        result = audit(losses, is_member, rng, permutations=200)
        auc = result.find("membership_auc")
        assert all(control.passed for control in result.controls)
        wrong += not auc.low <= 0.5 <= auc.high
        assert judge(auc, bound_of("membership_auc"), result.controls).verdict != Verdict.EXCEEDS
    assert binomial_tail(wrong, 30, 0.05) > ALMOST_NEVER


# planted


def low_rate_misses(rng, runs, n1, n0, shift, fpr, decimals=8):
    """How often the interval misses the true TPR, its mean width, and how often it leaves 0."""
    # a threshold t flags losses < t; on a grid of step h a loss below t is one whose unrounded value is below t - h/2
    misses, widths, above = 0, [], 0
    cut = norm.ppf(fpr)
    if decimals < 8:
        step = 10.0**-decimals
        cut = np.floor(cut / step - 0.5) * step + step / 2  # largest cell edge with P(below) <= fpr
    truth = norm.cdf(cut + shift)
    for _ in range(runs):
        member, other = (np.sort(side.round(decimals)) for side in gaussian_losses(rng, n1, n0, shift))
        value, low, high = tpr_at_fpr(member, other, fpr, 0.95)
        assert low <= value <= high
        misses += not low <= truth <= high
        widths.append(high - low)
        above += low > 0
    return misses, np.mean(widths), above / runs


@pytest.mark.parametrize("decimals", [8, 1])
def test_low_rate_interval_covers_and_is_not_vacuous(decimals):
    misses, width, above = low_rate_misses(np.random.default_rng(7), 400, 400, 1000, 2.0, 0.01, decimals)
    assert binomial_tail(misses, 400, 0.05) > ALMOST_NEVER
    assert width < 0.4
    assert above == 1


def test_interval_at_one_in_a_thousand_covers_and_leaves_zero():
    misses, width, above = low_rate_misses(np.random.default_rng(8), 1000, 2000, 8000, 2.5, 0.001)
    assert binomial_tail(misses, 1000, 0.05) > ALMOST_NEVER
    assert width < 0.4
    assert above == 1


def test_leak_of_known_size_is_recovered():
    covered = 0
    for seed in range(40):
        rng = np.random.default_rng(100 + seed)
        losses, is_member = both(*gaussian_losses(rng, 300, 300, 1.0))
        result = audit(losses, is_member, rng, permutations=200)
        auc, advantage = result.find("membership_auc"), result.find("membership_advantage")
        covered += auc.low <= norm.cdf(1 / math.sqrt(2)) <= auc.high  # AUC of a unit shift: 0.760
        assert auc.p_value < 1e-10
        assert advantage.low <= 2 * norm.cdf(0.5) - 1 + 0.02  # no threshold does better than 0.383
        assert advantage.low > 0
        assert judge(auc, bound_of("membership_auc"), result.controls).verdict == Verdict.EXCEEDS
    assert binomial_tail(40 - covered, 40, 0.05) > ALMOST_NEVER


def test_few_fully_exposed_records_show_at_the_low_rate_though_the_average_hides_them():
    rng = np.random.default_rng(11)
    member, other = rng.normal(0, 1, 5000), rng.normal(0, 1, 5000)
    member[:250] = -20  # one in twenty has a loss below all others
    losses, is_member = both(member, other)
    result = audit(losses, is_member, rng, permutations=200)
    auc, exposed = result.find("membership_auc"), result.find("tpr_at_fpr_0.001")
    assert judge(auc, bound_of("membership_auc"), result.controls).verdict == Verdict.WITHIN
    assert judge(exposed, bound_of("tpr_at_fpr_0.001"), result.controls).verdict == Verdict.EXCEEDS
    assert exposed.low > 0.04
    assert exposed.p_value == pytest.approx(1 / 201)


def test_smallest_detectable_effect_is_found_in_four_of_five_runs():
    rng = np.random.default_rng(12)
    n = 200
    reach = audit(*both(*gaussian_losses(rng, n, n, 0.0)), rng, permutations=200).find("membership_auc").mde
    shift = math.sqrt(2) * norm.ppf(0.5 + reach)
    found = sum(
        loss_membership._auc(*gaussian_losses(rng, n, n, shift), 0.95).low > 0.5  # the interval leaves chance
        for _ in range(400)
    )
    assert 0.72 < found / 400 < 0.88


def test_exposure_is_told_by_group_and_small_groups_stay_in_sight():
    rng = np.random.default_rng(13)
    is_member = np.repeat([1, 0], 600)
    group = np.tile(["A", "B"], 600).astype(object)
    group[:4] = "tiny"
    losses = rng.normal(0, 1, 1200) - 1.5 * ((is_member == 1) & (group == "B"))
    result = audit(losses, is_member, rng, {"sex": group}, permutations=200)
    a, b, tiny = (result.find("membership_auc", f"sex: {name}") for name in ("A", "B", "tiny"))
    assert a.low < 0.5 < a.high
    assert b.low < norm.cdf(1.5 / math.sqrt(2)) < b.high
    assert tiny.value is None
    assert tiny.undefined == "a group needs 10 members and 10 non-members; there are 4 and 0"


# controls


def test_planted_leak_too_small_to_find_fails_the_positive_control_and_the_finding_says_so(monkeypatch):
    monkeypatch.setattr(loss_membership, "PLANTED_AUC", 0.52)
    rng = np.random.default_rng(14)
    losses, is_member = both(*gaussian_losses(rng, 60, 60, 2.0))
    result = audit(losses, is_member, rng, permutations=200)
    assert [control.passed for control in result.controls] == [True, False]
    judgement = judge(result.find("membership_auc"), bound_of("membership_auc"), result.controls)
    assert judgement.verdict == Verdict.EXCEEDS
    assert "planted effect was not found" in judgement.because


def test_smallest_allowed_sample_passes_its_controls_on_almost_every_seed():
    passed = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        losses, is_member = both(*gaussian_losses(rng, loss_membership.FEWEST, loss_membership.FEWEST, 0.5))
        passed += all(c.passed for c in audit(losses, is_member, rng, permutations=200).controls)
    assert passed >= 18


# degenerate


def test_one_loss_for_all_says_nothing_but_says_it():
    rng = np.random.default_rng(15)
    result = audit(np.ones(4000), np.repeat([1, 0], 2000), rng, permutations=200)
    auc = result.find("membership_auc")
    assert auc.value == 0.5
    assert auc.low < 0.5 < auc.high
    assert auc.p_value == 1
    assert result.find("membership_advantage").value == 0
    assert result.find("tpr_at_fpr_0.001").value == 0
    figures(result)


def test_complete_separation_is_defined():
    rng = np.random.default_rng(16)
    result = audit(np.repeat([0.0, 1.0], 60), np.repeat([1, 0], 60), rng, permutations=200)
    auc = result.find("membership_auc")
    assert (auc.value, auc.high) == (1, 1)
    assert auc.low > 0.9


def test_too_few_non_members_leave_the_rate_undefined_with_the_reason():
    rng = np.random.default_rng(17)
    losses, is_member = both(*gaussian_losses(rng, 400, 400, 1.0))
    result = audit(losses, is_member, rng, permutations=200)
    rare = result.find("tpr_at_fpr_0.001")
    assert rare.value is None
    assert rare.undefined == "0.1 % FPR needs at least 1,000 non-members; there are 400"
    assert judge(rare, bound_of("tpr_at_fpr_0.001"), result.controls).verdict == Verdict.CANNOT_TELL
    assert any("at 1 % FPR stays 0 below 437 non-members" in note for note in result.notes)
    assert not any("at 0.1 %" in note for note in result.notes)


@pytest.mark.parametrize(
    ("losses", "is_member", "words"),
    [
        (np.ones(0), np.ones(0), "there are 0 and 0"),
        (np.ones(100), np.ones(100), "there are 100 and 0"),
        (np.ones(60), np.repeat([1, 0], [50, 10]), "there are 50 and 10"),
        (np.ones(100), np.repeat([1, 0], 49), "100 scores but 98 membership marks"),
        (np.ones(100), np.repeat([1, 2], 50), "found 2"),
        (np.append(np.ones(99), np.nan), np.repeat([1, 0], 50), "1 of 100 records have no finite loss"),
        (np.append(np.ones(98), [np.inf, np.inf]), np.repeat([1, 0], 50), "2 of 100 records"),
    ],
)
def test_unsuitable_inputs_are_refused_in_words(losses, is_member, words):
    with pytest.raises(UnsuitableInput, match=words):
        audit(losses, is_member, np.random.default_rng(0))


# the result and its figures


def test_same_seed_gives_the_same_result_and_inputs_stay_as_they_were():
    given = example(np.random.default_rng(1))
    before = given["record_loss"].copy()
    first, second = (audit(**given, rng=np.random.default_rng(2), permutations=200) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert np.array_equal(given["record_loss"], before)


def test_roc_is_thin_and_rises_within_its_band():
    fpr, tpr, low, high = roc_with_band(*gaussian_losses(np.random.default_rng(18), 3000, 20_000, 1.0), 0.95)
    assert fpr.size <= 500
    assert (low <= tpr).all()
    assert (tpr <= high).all()
    for curve in (fpr, tpr, low, high):
        assert (np.diff(curve) >= 0).all()


def test_figures_are_drawn_from_the_stored_result_alone():
    result = audit(**example(np.random.default_rng(1)), rng=np.random.default_rng(2))
    stored = Result.from_json(json.loads(json.dumps(result.to_json())), result.arrays)
    drawn = figures(stored)
    json.dumps([figure.to_json() for figure in drawn], allow_nan=False)
    assert [figure.title for figure in drawn] == [figure.title for figure in figures(result)]
    assert len(drawn) == 4
    assert f"AUC {result.find('membership_auc').value:.3f}" in drawn[2].alt
    assert drawn[0].layout["xaxis"]["type"] == "log"
    assert "group: B" in drawn[3].alt


def test_card_bounds_name_what_is_measured():
    result = audit(**example(np.random.default_rng(1)), rng=np.random.default_rng(2), permutations=200)
    for bound in METHOD.bounds:
        assert isinstance(bound, Bound)
        assert result.find(bound.measurement).worse == "higher"
