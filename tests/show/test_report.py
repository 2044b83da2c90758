"""The report: its verdicts are the result's, its numbers the result's, and names stay names."""

from __future__ import annotations

import copy
import inspect
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy import stats

import retrace_sde as rt
from retrace_sde.evidence.direction.verdict import (
    Caution,
    Reason,
    known_direction,
    left_open,
)
from retrace_sde.process.drift import Drift
from retrace_sde.show import figures, report
from retrace_sde.show.verdicts import placement, verdicts

HOSTILE = ("<script>alert(1)</script>", "\"'></script><!--", "a&b \u2028 </SCRIPT>")


def shuffled(n, T, d, *, permutation="shared", x0=0.1, seed=0):
    sde = rt.simulate.random_irreversible_sde(d, setting="stable", random_state=seed)
    X = sde.simulate(n, T, dt=0.01, x0=x0, random_state=seed + 1)
    return rt.simulate.shuffle(X, permutation=permutation, random_state=seed + 2)[0]


@pytest.fixture(scope="module")
def fit():
    """Three variables with hostile names, one shared order, sampled."""
    panel = rt.Panel.from_array(
        shuffled(40, 12, 3), names=HOSTILE, ids=[f"<b>{j}</b>" for j in range(40)], dt=0.01
    )
    model = rt.ReTrace(n_jobs=1).fit(panel)
    model.sample_orders(draws=200)
    return model, panel


@pytest.fixture(scope="module")
def page(fit, tmp_path_factory):
    path = rt.write_report(
        *fit, tmp_path_factory.mktemp("report") / "report.html", title="<i>T</i>"
    )
    return path.read_text(encoding="utf-8")


def embedded(page):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    )


class Structure(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.ids, self.open, self.text = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in ("meta", "input", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "script" not in self.open and "style" not in self.open:
            self.text.append(data)


def test_the_page_is_well_formed_and_complete_in_itself(page):
    parsed = Structure()
    parsed.feed(page)
    assert parsed.open == []
    assert len(parsed.ids) == len(set(parsed.ids))
    assert parsed.tags.count("script") == 2
    assert not {"link", "img", "iframe", "b", "i"} & set(parsed.tags)
    outside = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//[a-z]+\.[a-z]|@import|url\(|fetch\(", outside)


def test_every_name_of_the_data_is_escaped_and_still_there(page):
    parsed = Structure()
    parsed.feed(page)
    text = "".join(parsed.text)
    for name in HOSTILE:
        assert name in text
    assert "<i>T</i>" in text
    data = embedded(page)
    assert data["names"] == list(HOSTILE)
    assert data["paths"]["ids"][0] == "<b>0</b>"
    # Nothing but the page's own two elements can open or close a script.
    assert len(re.findall(r"<script", page, re.IGNORECASE)) == 2
    assert len(re.findall(r"</script", page, re.IGNORECASE)) == 2
    assert "<!--" not in page


def test_verdicts_come_first_and_are_the_results(fit, page):
    model, panel = fit
    parsed = Structure()
    parsed.feed(page)
    text = "".join(parsed.text)
    order, direction, rest, next_ = verdicts(model, panel)
    for each in (order, direction, rest, next_):
        assert each.question in text
        assert all(sentence in text for sentence in each.sentences)
        assert text.index(each.question) < text.index("How is this computed?")
    assert model.direction_.verdict in direction.sentences
    for sentence in (*model.identifiability_.can, *model.identifiability_.cannot):
        assert any(sentence in each for each in (*rest.sentences, *direction.sentences))


def test_the_probability_of_a_placement_is_the_posteriors(fit):
    model, _ = fit
    P, order = model.position_probabilities_, model.order_
    expected = [P[order[k], k] for k in range(len(order))]
    np.testing.assert_allclose(placement(model), expected)


def test_numbers_are_the_results_to_the_digits_shown(fit, page):
    model, panel = fit
    data = embedded(page)
    errors, reach = model.standard_errors_.drift, stats.t.ppf(0.975, 39)
    np.testing.assert_allclose(data["drift"]["values"], model.drift_, rtol=5e-4)
    np.testing.assert_allclose(data["drift"]["low"], model.drift_ - reach * errors, rtol=5e-4)
    np.testing.assert_allclose(data["diffusion"]["values"], model.diffusion_, rtol=5e-4)
    excluded = {tuple(each) for each in np.argwhere(np.abs(model.drift_) > reach * errors).tolist()}
    assert {(i, j) for i, j, _ in data["drift"]["clear"]} == excluded
    assert marked(page) == told(model)
    eigenvalues = np.array(data["eigenvalues"]) @ [1, 1j]
    np.testing.assert_allclose(
        np.poly(eigenvalues),
        np.poly(model.drift_),
        rtol=1e-2,
        atol=1e-2 * np.abs(np.poly(model.drift_)).max(),
    )
    bars, delta = data["direction"], model.direction_.contributions
    assert sum(bars["counts"]) == len(delta)
    right = [count for count, edge in zip(bars["counts"], bars["edges"], strict=False) if edge >= 0]
    assert sum(right) == (delta >= 0).sum()
    # The picture of the restored data is the data along order_.
    unit, paths = data["units"][0], data["paths"]
    restored = np.array(paths["values"])[:, :, unit["steps"][-1]["order"]]
    rows = [int(each.strip("<b>/")) for each in paths["ids"]]
    expected = panel.values[rows][:, model.order_].transpose(0, 2, 1)
    np.testing.assert_allclose(restored, expected, rtol=5e-4)


def marked(page):
    return len(re.findall(r'interval excludes zero">●', page))


def told(model):
    """Entries of A and of the lower half of H whose interval excludes zero."""
    A, H, errors = model.drift_, model.diffusion_, model.standard_errors_
    reach = stats.t.ppf(0.975, model.result_.n_trajectories - 1)
    lower = np.tril(np.abs(H) > reach * errors.diffusion)
    return (np.abs(A) > reach * errors.drift).sum() + lower.sum()


def test_costs_are_low_along_the_recovered_order(page):
    unit = embedded(page)["units"][0]
    costs, final = np.array(unit["costs"]), unit["steps"][-1]["order"]
    assert costs[final[:-1], final[1:]].sum() < costs[np.arange(11), np.arange(1, 12)].sum()
    assert unit["steps"][0]["order"] == list(range(12))
    assert all(sorted(step["order"]) == list(range(12)) for step in unit["steps"])


def test_the_same_fit_gives_the_same_file_and_nothing_else(fit, page, tmp_path):
    model, panel = fit
    again = rt.write_report(model, panel, tmp_path / "again.html", title="<i>T</i>")
    assert again.read_text(encoding="utf-8") == page
    assert [each.name for each in tmp_path.iterdir()] == ["again.html"]


def test_every_estimator_says_its_formula():
    offered = re.search(r"estimator: Literal\[(.*?)\]", inspect.getsource(rt.ReTrace))[1]
    names = set(re.findall(r'"(\w+)"', offered)) - {"auto"}
    assert names == set(report.ESTIMATORS)


def test_an_undetermined_direction_is_said_and_the_twin_is_shown(tmp_path):
    X = shuffled(100, 60, 2, x0="stationary")
    model = rt.ReTrace(dt=0.01, n_jobs=1).fit(X)
    assert not model.direction_.identified
    assert (model.drift_ + 1.96 * model.standard_errors_.drift < 0).any()
    page = rt.write_report(model, X, tmp_path / "r.html").read_text(encoding="utf-8")
    assert "It cannot be known from these data" in page
    assert "one fact about time" in page
    assert "call sample_orders()" in page
    twin = model.alternative_
    reach = stats.t.ppf(0.975, model.result_.n_trajectories - 1)
    beside = (np.abs(twin.drift) > reach * twin.standard_errors.drift).sum()
    assert marked(page) == told(model) + beside
    assert "in its reverse" in page
    np.testing.assert_allclose(
        embedded(page)["twin"]["values"], model.alternative_.drift, rtol=5e-4
    )
    assert 'id="twin-map"' in page
    strengths = [strength for _, _, strength in embedded(page)["drift"]["clear"]]
    assert len(strengths) > 1
    assert strengths == sorted(strengths, reverse=True)
    assert 'id="certainty"' not in page
    assert 'id="gap-plot"' not in page


def test_a_direction_that_is_not_decided_is_not_said_to_be_unknowable(fit):
    """One way round fits better by ten nats, p = .2: nothing says that the process is stationary."""
    model, panel = fit
    doubt = replace(
        model.direction_, identified=False, p_value=0.2, p_error=0.03, reason=Reason.TESTED
    )
    other = copy.copy(model)
    other.result_ = replace(model.result_, direction=doubt)
    assert verdicts(other, panel)[1].answer == "It is not decided"
    alike = replace(doubt, log_likelihood_ratio=0.5)
    other.result_ = replace(model.result_, direction=alike)
    assert verdicts(other, panel)[1].answer == "It cannot be known from these data"


def test_the_models_of_the_direction_are_a_table_with_bars_in_words(fit, page):
    model, _ = fit
    models = model.direction_.models
    assert len(models) > 1
    table = page[page.index('id="table-models"') :].split("</table>")[0]
    assert table.count("<tr>") == 1 + len(models)
    assert table.count("<svg") == len(models)
    for each in models:
        assert each.meaning.replace("'", "&#39;") in table
        assert each.p_said.replace("<", "&lt;") in table
    assert table.count('title="counts"') == sum(each.counted for each in models)


def test_the_order_says_whether_its_probabilities_are_given_parameters(fit):
    model, panel = fit
    drawn = copy.copy(model)
    for over, said in ((True, "include the uncertainty of the parameters"), (False, "as known")):
        drawn.posterior_ = replace(model.posterior_, over_parameters=over)
        assert any(said in line for line in verdicts(drawn, panel)[0].sentences)
    assert model.posterior_.over_parameters  # a plain shared order: parameters are integrated out


def test_a_value_treated_as_missing_is_not_drawn_among_distances():
    X = shuffled(40, 10, 3)
    X[0, 7, 1] *= 1000
    panel = rt.Panel.from_array(X, dt=0.01)
    with pytest.warns(rt.ReTraceWarning, match="treated as missing"):
        model = rt.ReTrace(n_jobs=1, random_state=0).fit(panel)
    costs, kind = figures._costs(model, panel, None, np.arange(10))
    np.fill_diagonal(costs, np.nan)
    assert kind == "distance"
    assert np.nanmean(costs[7]) < 3 * np.nanmean(costs)  # with the value it would be about 5


def test_named_slices_are_given_in_order(fit):
    model, panel = fit
    named = replace(panel, slices=tuple(f"plate {k}<" for k in "ABCDEFGHIJKL"))
    expected = " → ".join(named.slices[k] for k in model.order_)
    assert verdicts(model, named)[0].sentences[0] == f"The order is {expected}."
    assert figures.figures(model, named)["units"][0]["labels"] == list(named.slices)


def test_own_orders_of_different_length(tmp_path):
    X = shuffled(12, 9, 2, permutation="independent")
    panel = rt.Panel.from_trajectories([x[: 9 - j % 3] for j, x in enumerate(X)], dt=0.01)
    model = rt.ReTrace(permutation="independent", estimator="mle", random_state=0, n_jobs=1)
    model.fit(panel).sample_orders(draws=100)
    data = embedded(rt.write_report(model, panel, tmp_path / "r.html").read_text(encoding="utf-8"))
    assert [len(unit["slices"]) for unit in data["units"]] == [9 - j % 3 for j in range(12)]
    for unit in data["units"]:
        T = len(unit["slices"])
        assert all(sorted(step["order"]) == list(range(T)) for step in unit["steps"])
        np.testing.assert_allclose(np.sum(unit["probabilities"], axis=1), 1, atol=0.02)
    assert placement(model, lengths=panel.lengths).size == panel.lengths.sum()


def test_estimated_gaps_are_drawn_with_their_intervals(tmp_path):
    sde = rt.simulate.random_irreversible_sde(3, setting="stable", random_state=0)
    X = sde.simulate(60, 40, dt=0.02, x0=0.1, random_state=1)[
        :, [0, 1, 2, 5, 9, 12, 20, 24, 30, 39]
    ]
    X = rt.simulate.shuffle(X, random_state=2)[0]
    model = rt.ReTrace(dt=0.08, spacing="estimate", n_jobs=1).fit(X)
    page = rt.write_report(model, X, tmp_path / "r.html").read_text(encoding="utf-8")
    gaps = embedded(page)["gaps"]
    np.testing.assert_allclose(gaps["values"], model.gaps_, rtol=5e-4)
    np.testing.assert_allclose(
        np.transpose([gaps["low"], gaps["high"]]), model.result_.gap_intervals, rtol=5e-4
    )
    assert 'id="gap-plot"' in page
    assert "estimated together with the order" in page


def test_a_known_direction_a_closed_loop_and_a_fold_are_said(fit):
    model, panel = fit
    told = copy.copy(model)
    told.result_ = replace(model.result_, direction=known_direction(model.direction_))
    assert verdicts(told, panel)[1].answer == "As the knowledge given says"
    loop = copy.copy(model)
    loop.result_ = replace(
        model.result_, identifiability=replace(model.identifiability_, cycle=True)
    )
    assert "closed loop" in verdicts(loop, panel)[0].answer
    fold = copy.copy(model)
    fold.result_ = replace(model.result_, direction=left_open(model.direction_, Reason.FOLD))
    assert "folded" in verdicts(fold, panel)[0].answer


@pytest.mark.filterwarnings("ignore:The order may be folded")
def test_a_fold_that_was_cautioned_of_is_not_advised_on_again(tmp_path):
    model = rt.ReTrace(dt=0.1, n_jobs=1)
    X = np.random.default_rng(0).standard_normal((30, 8, 1)).cumsum(axis=1)
    model.fit(X)
    panel = rt.Panel.from_array(X)
    advice = "Check the picture of the restored order"
    for notes in ((), (str(Caution.FOLD),)):
        model.result_ = replace(model.result_, notes=notes)
        steps = verdicts(model, panel)[3].sentences
        assert any(each.startswith(advice) for each in steps) == (not notes)


class Cubic(Drift):
    def features(self, x, u):
        return np.concatenate([x, x**3], axis=-1)

    def feature_names(self, variables, covariates):
        return [*variables, *(f"{name}³" for name in variables)]


@pytest.mark.filterwarnings("ignore:The order may be folded")
@pytest.mark.parametrize("drift", ["affine", Cubic()])
@pytest.mark.parametrize("d", [1, 3])
def test_other_drifts_show_each_coefficient_by_name(drift, d, tmp_path):
    X = shuffled(40, 10, d)
    model = rt.ReTrace(dt=0.01, drift=drift, n_jobs=1).fit(X)
    page = rt.write_report(model, X, tmp_path / "r.html").read_text(encoding="utf-8")
    data = embedded(page)
    assert np.shape(data["drift"]["values"]) == (d, len(data["drift"]["columns"]))
    if drift == "affine":
        assert "Offset c" in page
        assert data["eigenvalues"]
    else:
        assert "x0³" in page
        assert data["eigenvalues"] is None
        assert 'id="eigen-plot"' not in page


def test_large_panels_are_thinned_and_the_page_says_so(tmp_path, monkeypatch):
    X = shuffled(50, 30, 4)
    model = rt.ReTrace(dt=0.01, n_jobs=1).fit(X)
    model.sample_orders(draws=100)
    monkeypatch.setattr(figures, "MAX_SLICES", 10)
    monkeypatch.setattr(figures, "MAX_TRAJECTORIES", 5)
    page = rt.write_report(model, X, tmp_path / "r.html").read_text(encoding="utf-8")
    assert "5 of 50 trajectories are drawn, evenly spaced; 10 of 30 slices are drawn" in page
    unit = embedded(page)["units"][0]
    final = np.array(unit["slices"])[unit["steps"][-1]["order"]]
    np.testing.assert_array_equal(final, model.order_[unit["positions"]])
    np.testing.assert_allclose(np.sum(unit["probabilities"], axis=1), 1, atol=0.02)


def test_missing_values_leave_gaps_and_distances_of_what_is_there(fit):
    model, panel = fit
    values = panel.values.copy()
    values[:, 3, 1] = np.nan
    values[0, 5] = np.nan
    holes = rt.Panel.from_array(values, names=panel.names, ids=panel.ids, dt=0.01)
    data = figures.figures(model, holes)
    assert data["paths"]["values"][0][1][3] is None
    assert data["units"][0]["kind"] == "distance"
    # By hand: slices 3 and 4, all that was seen at both.
    scaled = (values - np.nanmean(values, axis=(0, 1))) / np.nanstd(values, axis=(0, 1))
    expected = np.nanmean((scaled[:, 3] - scaled[:, 4]) ** 2)
    assert data["units"][0]["costs"][3][4] == pytest.approx(expected, rel=5e-4)


def test_any_array_namespace(fit, tmp_path):
    import array_api_strict

    model, panel = fit
    foreign = replace(panel, values=array_api_strict.asarray(panel.values))
    one, other = (
        rt.write_report(model, each, tmp_path / f"{k}.html").read_text(encoding="utf-8")
        for k, each in enumerate((panel, foreign))
    )
    assert one == other


def test_observation_noise_is_listed_and_distances_are_drawn(fit, tmp_path):
    model, panel = fit
    noisy = copy.copy(model)
    noisy.result_ = replace(model.result_, observation_noise=np.diag([0.01, 0.04, 0.09]))
    page = rt.write_report(noisy, panel, tmp_path / "r.html").read_text(encoding="utf-8")
    assert embedded(page)["units"][0]["kind"] == "distance"
    assert re.search(r"Observation noise.*>0\.1<.*>0\.2<.*>0\.3<", page, re.DOTALL)


def test_wrong_use_is_refused_in_words(fit, tmp_path):
    model, panel = fit
    with pytest.raises(ValueError, match="pass the data of the fit"):
        rt.write_report(model, panel.values[:5], tmp_path / "r.html")
    with pytest.raises(ValueError, match="not fitted"):
        rt.write_report(rt.ReTrace(), panel, tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


def test_the_next_observations_are_in_the_report(fit, page, tmp_path):
    model, panel = fit
    ahead, drawn = model.forecast(None, 3), embedded(page)["forecast"]
    assert np.shape(drawn["mean"])[1:] == (len(panel.names), 3)
    np.testing.assert_allclose(drawn["mean"][0], ahead.mean[0].T, rtol=1e-3)
    np.testing.assert_allclose(drawn["high"][0], ahead.high[0].T, rtol=1e-3)
    np.testing.assert_allclose(drawn["times"][0], ahead.times, rtol=1e-3)
    assert "What comes next" in page
    sent = rt.write_report(model, panel, tmp_path / "s.html", share=True, steps=2).read_text()
    means = embedded(sent)["forecast"]
    np.testing.assert_allclose(np.array(means["mean"])[0], model.forecast(None, 2).mean.mean(axis=0).T, rtol=1e-3)  # fmt: skip
    assert "means over all subjects" in sent
    none = rt.write_report(model, panel, tmp_path / "n.html", steps=0).read_text()
    assert embedded(none)["forecast"] is None
    assert "What comes next" not in none
