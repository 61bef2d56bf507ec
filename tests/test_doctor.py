"""The doctor: each symptom is provoked by a run of the real loops, and a healthy run has none."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from doctor_text import some_questions, train_text
from mempo_env.arrays.vector import SearchQAArrayVectorEnv
from mempo_env.cli import main
from mempo_env.errors import TrainingError
from mempo_trainers.config import Config
from mempo_trainers.credit import CREDITS
from mempo_trainers.credit.data import Trajectories
from mempo_trainers.credit.outcome import grpo as grpo_credit
from mempo_trainers.credit.result import Credit
from mempo_trainers.doctor import SYMPTOMS, Finding
from mempo_trainers.doctor.cli import examine
from mempo_trainers.policies.base import Policy, Responses, Rollouts
from mempo_trainers.policies.pointer import ArrayContexts, ArrayPolicy
from mempo_trainers.run import Run
from mempo_trainers.run_files import read_metrics
from mempo_trainers.sample import Draw
from mempo_trainers.toy import Toy, ToyDraw
from train_help import train

ONE = Toy(objectives=1, worlds=60, reward="em_mean")
FEW = Config(steps=8, questions=4, rollouts=4, checkpoint_every=100)


def config(**changes: Any) -> Config:
    return msgspec.structs.replace(FEW, **changes)


def found(run: Path, symptom: str) -> Finding:
    """The finding of that name, and no run without one passes for healthy."""
    diagnosis = examine(run)
    by_name = {finding.symptom: finding for finding in diagnosis.findings}
    assert symptom in by_name, diagnosis
    return by_name[symptom]


def names(run: Path) -> set[str]:
    return {finding.symptom for finding in examine(run).findings}


class Other(ArrayPolicy):
    """An array policy to be bent."""

    def __init__(self, task: Toy = ONE, learning_rate: float = 0.03) -> None:
        super().__init__(task.envs(1).layout, learning_rate=learning_rate, max_grad_norm=1, seed=0)


def drawing(
    task: Toy, config: Config, changed: Callable[[int, Rollouts], Rollouts]
) -> Callable[[Policy], Draw]:
    """Draws as ever, then changes what was drawn."""

    def make(policy: Policy) -> Draw:
        draw = ToyDraw(policy, task, config.rollouts, 0)  # type: ignore[arg-type]
        return lambda step, attempt, questions: changed(step, draw(step, attempt, questions))

    return make


# --- Healthy -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that learns its task."""
    run = tmp_path_factory.mktemp("healthy") / "run"
    train(run, msgspec.structs.replace(ONE, reward="em_all"), config(steps=30, questions=8, rollouts=8))
    return run


def test_a_healthy_run_has_nothing(healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diagnosis = examine(healthy)
    assert diagnosis.findings == ()
    assert set(diagnosis.fine) == set(SYMPTOMS) - {"first_kl"}
    assert diagnosis.unchecked == {"first_kl": "no reference is kept (kl 0)"} and not diagnosis.unfinished
    assert (
        "facts that were shown" in diagnosis.fine["guessed"]
    )  # no other memory can be, so it is not counted
    assert main(["doctor", str(healthy)]) == 0
    told = capsys.readouterr().out
    assert f"{healthy}: nothing found by 14 of 15 checks\n" in told
    for name in diagnosis.fine:
        assert f"checked, fine: {name}: " in told
    assert told.splitlines()[-1] == "not checked: first_kl: no reference is kept (kl 0)"


def test_a_short_run_says_what_it_is_too_short_for(tmp_path: Path) -> None:
    train(tmp_path / "run", ONE, config(steps=2))
    unchecked = examine(tmp_path / "run").unchecked
    assert unchecked["collapse"] == "needs 8 steps, found 2"


def test_a_run_that_is_not_finished_is_said_to_be_so(
    healthy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(healthy, tmp_path / "run"))
    lines = (healthy / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join(lines[:7]) + lines[7][:40])  # killed while it wrote step 8
    assert main(["doctor", str(run)]) == 0
    assert f"{run}: unfinished, 7 of 30 steps; nothing found by 8 of 15 checks\n" in capsys.readouterr().out
    assert main(["doctor", str(run), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["steps"], value["planned"]) == (7, 30)


def test_a_run_of_which_nothing_can_be_checked_is_not_told_to_be_fine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("stable_baselines3", reason="needs mempo[sb3]")
    run = tmp_path / "sb3"
    assert main(["train", "sb3", "--steps", "1", "--out", str(run)]) == 0
    capsys.readouterr()
    assert main(["doctor", str(run)]) == 2
    told = capsys.readouterr().out
    assert f"{run}: nothing could be checked, for its metrics hold only rollouts, reward, success" in told
    assert "nothing found" not in told and "fine" not in told
    assert [f"not checked: {name}: " in told for name in SYMPTOMS] == [True] * len(SYMPTOMS)


# --- Advantages and log-probs ------------------------------------------------------------------------------


def test_outcome_alone_at_four_objectives_teaches_nothing(tmp_path: Path) -> None:
    task = Toy(objectives=4, worlds=60)
    train(tmp_path / "run", task, config(steps=2, credit="grpo"))
    finding = found(tmp_path / "run", "no_advantage")
    assert finding.severity == "error"
    assert "8 of 8 groups dead in 2 unsolved steps from steps 1-2" in finding.evidence
    assert "outcome degenerate in 8; reward" in finding.evidence  # of memory nothing is known
    assert "reward 0 to 0, normalised 0 to 0" in finding.evidence
    assert "--credit mempo" in finding.action
    train(tmp_path / "mempo", task, config(steps=2))
    assert "no_advantage" not in names(tmp_path / "mempo")


def test_where_no_memory_is_paid_for_nothing_is_said_of_what_it_is_paid(tmp_path: Path) -> None:
    train(tmp_path / "run", ONE, config(steps=4, credit="grpo"))
    told = examine(tmp_path / "run").unchecked["memory_term"]
    assert told == "the estimator tells of no rewards of memories"
    assert {row["unwritten"] for row in read_metrics(tmp_path / "run")} == {None}


def test_rollouts_that_are_all_alike_teach_nothing(tmp_path: Path) -> None:
    policy = Other()
    with torch.no_grad():
        for weight in policy.heads.parameters():
            weight.copy_(1000 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)))
    train(tmp_path / "run", ONE, config(steps=2), policy=policy)
    finding = found(tmp_path / "run", "no_advantage")
    assert "edit distance within groups 0.0" in finding.evidence
    assert "alike" in finding.action


def test_groups_of_one_rollout_are_named_as_the_reason(tmp_path: Path) -> None:
    train(tmp_path / "run", ONE, config(steps=2, rollouts=1, credit="grpo"))
    finding = found(tmp_path / "run", "no_advantage")
    assert finding.evidence.endswith("one rollout in each group")
    assert finding.action.startswith("a group of one rollout has nothing that its outcome is compared with")
    assert "--rollouts 8" in finding.action and "--algo ppo" in finding.action


def test_where_no_outcome_differs_nothing_is_said_of_the_first_round(tmp_path: Path) -> None:
    train(tmp_path / "run", Toy(objectives=4, worlds=60), config(steps=2, credit="grpo"))
    diagnosis = examine(tmp_path / "run")
    assert "first_round" not in diagnosis.fine
    assert diagnosis.unchecked["first_round"].startswith("no step has outcomes that differ")


def test_attribution_gives_first_rounds_their_outcome(tmp_path: Path) -> None:
    train(tmp_path / "run", ONE, config(steps=3, credit="attribution"))
    assert "first_round" in examine(tmp_path / "run").fine
    rows = read_metrics(tmp_path / "run")
    differ = [row["degenerate_groups"] < row["groups"] for row in rows]
    assert any(differ) and [row["advantage_first"] > 0 for row in rows] == differ


def reset_at_rounds(trajectories: Trajectories) -> Credit:
    """The outcome, but a return does not pass the observation before the last round."""
    whole = grpo_credit(trajectories)
    last_B = (trajectories.number_R == trajectories.rounds_N[trajectories.rollout_R])[trajectories.round_B]
    return msgspec.structs.replace(
        whole, advantages_BK=whole.advantages_BK * last_B[:, None].astype(np.float32)
    )


def test_returns_that_are_reset_leave_the_first_round_without_credit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CREDITS, "reset", reset_at_rounds)  # type: ignore[index]
    train(tmp_path / "run", ONE, config(steps=3, credit="reset"))
    finding = found(tmp_path / "run", "first_round")
    assert "mean size of advantages 0 in first rounds" in finding.evidence
    assert "carry returns" in finding.action
    train(tmp_path / "whole", ONE, config(steps=3, credit="grpo"))
    assert "first_round" not in names(tmp_path / "whole")


class RoundedReference(Other):
    """The frozen copy of it is rounded: 5e-5 nats a token away, which is too little to be refused at once."""

    rounded = False

    def __deepcopy__(self, memo: dict[int, Any]) -> ArrayPolicy:
        other = type(self)()
        other.rounded = True
        return other

    def logprobs(self, contexts: ArrayContexts, responses: Responses) -> tuple[torch.Tensor, torch.Tensor]:
        logp, entropy = super().logprobs(contexts, responses)
        return logp - 5e-5 * self.rounded, entropy


def test_a_reference_that_is_not_quite_the_policy_shows_in_the_first_step(tmp_path: Path) -> None:
    settings = config(steps=2, kl=0.1, kl_kind="k1")
    train(tmp_path / "run", ONE, settings, policy=RoundedReference())
    finding = found(tmp_path / "run", "first_kl")
    assert "in step 1, before any update" in finding.evidence
    train(tmp_path / "same", ONE, settings)
    assert "first_kl" in examine(tmp_path / "same").fine


class Stale(Other):
    """Another engine samples, and nobody sends it the new weights."""

    def __init__(self) -> None:
        super().__init__(learning_rate=0.3)
        self.engine = Other()

    def act(self, contexts: ArrayContexts, generator: torch.Generator) -> Responses:
        return self.engine.act(contexts, generator)


def test_a_sampler_with_other_weights_is_found(tmp_path: Path) -> None:
    train(tmp_path / "run", ONE, config(steps=4), policy=Stale())
    finding = found(tmp_path / "run", "sampler_gap")
    assert "in 3 of 4 steps, first in step 2" in finding.evidence


class Unsaid(Other):
    """From some update on its log-probs are no numbers, in learning alone."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def logprobs(self, contexts: ArrayContexts, responses: Responses) -> tuple[torch.Tensor, torch.Tensor]:
        self.left -= 1
        logp, entropy = super().logprobs(contexts, responses)
        return (logp * torch.nan if self.left < 0 else logp), entropy


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("after", "told"),
    [
        (1, "nats apart, in 2 of 3 steps, first in step 2; no numbers in 2"),
        (2, "nats apart, in 1 of 3 steps, first in step 3; no numbers in 1"),
    ],
)
def test_log_probs_that_are_no_numbers_are_told_without_a_warning(
    tmp_path: Path, after: int, told: str
) -> None:
    train(tmp_path / "run", ONE, config(steps=3), policy=Unsaid(after))
    assert told in found(tmp_path / "run", "sampler_gap").evidence


class Poisoned(Other):
    """From the third update on a gradient is infinite."""

    calls = 0

    def update(self) -> float:
        self.calls += 1
        if self.calls >= 3:
            self.heads.unknown.grad = torch.tensor(torch.inf)
        return super().update()


def test_gradients_that_are_no_numbers_are_counted(tmp_path: Path) -> None:
    train(tmp_path / "run", ONE, config(steps=5), policy=Poisoned())
    finding = found(tmp_path / "run", "not_finite")
    assert finding.evidence == "3 updates left out in 3 of 5 steps, from step 3"


def test_a_run_whose_gradients_are_no_numbers_any_more_ends_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="got none for 10 steps in a row: lower the learning rate"):
        train(tmp_path / "run", ONE, config(steps=40), policy=Poisoned())
    finding = found(tmp_path / "run", "not_finite")
    assert finding.evidence == "10 updates left out in 10 of 12 steps, from step 3"


@pytest.mark.parametrize("after", [1, 3])
def test_an_estimator_whose_advantages_are_no_numbers_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Nothing else is said to be wrong, or to be right, for advantages that are none."""
    calls = iter(range(1, 100))

    def wild(trajectories: Trajectories) -> Credit:
        found = grpo_credit(trajectories)
        nan_BK = np.full_like(found.advantages_BK, np.nan if next(calls) >= after else 1)
        return msgspec.structs.replace(found, advantages_BK=found.advantages_BK * nan_BK)

    monkeypatch.setitem(CREDITS, "wild", wild)  # type: ignore[index]
    monkeypatch.setattr("mempo_trainers.run.MOST_SKIPPED", 100)  # it would end the run sooner
    train(tmp_path / "run", ONE, config(credit="wild", steps=24))
    finding, diagnosis = found(tmp_path / "run", "not_finite"), examine(tmp_path / "run")
    told = f"advantages of wild are no numbers in {25 - after} of them, from step {after}"
    assert told in finding.evidence and finding.action.startswith("look at what wild computes")
    if after == 1:
        assert names(tmp_path / "run") == {"not_finite"}
        for symptom in ("no_advantage", "first_round", "nothing_moves"):
            assert diagnosis.unchecked[symptom].endswith("see not_finite")
    else:
        assert not any(told.endswith("see not_finite") for told in diagnosis.unchecked.values())


# --- Learning ----------------------------------------------------------------------------------------------


def test_a_reward_that_is_a_coin_lies_flat_while_the_critic_learns(tmp_path: Path) -> None:
    def coin(step: int, drawn: Rollouts) -> Rollouts:
        """Scored against the answers of other questions, or so."""
        paid_N = np.random.default_rng([9, step]).integers(0, 2, len(drawn.data.outcome_N)).astype(float)
        last_R = np.append(np.diff(drawn.data.rollout_R) != 0, True)
        reward_R = np.where(last_R, paid_N[drawn.data.rollout_R], 0.0)
        data = msgspec.structs.replace(drawn.data, outcome_N=paid_N, reward_R=reward_R)
        return msgspec.structs.replace(drawn, data=data)

    settings = config(steps=24, questions=8, rollouts=8, algo="ppo", credit="gae", learning_rate=0.004)
    train(tmp_path / "run", ONE, settings, draw=drawing(ONE, settings, coin))
    finding = found(tmp_path / "run", "reward_flat")
    assert "kl weight 0" in finding.evidence
    assert "see whether the reward" in finding.action


@pytest.mark.parametrize(
    ("changes", "action"),
    [
        ({"learning_rate": 1e-9}, "a greater --learning-rate"),
        ({"kl": 1000.0}, "a smaller --kl than 1000"),
        ({"entropy": 10.0}, "a smaller --entropy than 10"),
    ],
)
def test_a_policy_that_does_what_it_did_at_the_beginning(
    tmp_path: Path, changes: dict[str, float], action: str
) -> None:
    task = msgspec.structs.replace(ONE, reward="em_all")
    train(tmp_path / "run", task, config(steps=40, questions=8, rollouts=8, credit="grpo", **changes))
    finding = found(tmp_path / "run", "nothing_moves")
    assert action in finding.action
    for name in ("policy_kl", "grad_norm", "kl weight", "entropy weight", "learning rate"):
        assert name in finding.evidence
    assert ("; kl " in finding.evidence) == ("kl" in changes)  # of no reference there is no divergence
    assert names(tmp_path / "run") == {"nothing_moves"}


def test_where_all_groups_are_dead_the_policy_is_not_said_to_change(tmp_path: Path) -> None:
    train(tmp_path / "run", Toy(worlds=60), config(steps=24, credit="grpo"))
    assert all(row["grad_norm"] == row["policy_kl"] == 0 for row in read_metrics(tmp_path / "run"))
    diagnosis = examine(tmp_path / "run")
    assert names(tmp_path / "run") == {"no_advantage"}
    assert diagnosis.unchecked["nothing_moves"].endswith("groups are dead: see no_advantage")


def test_a_policy_whose_reward_is_still_to_come_moves(tmp_path: Path) -> None:
    """Memory is learned before four answers are right at once: no reward yet, but less entropy."""
    train(tmp_path / "run", Toy(worlds=60), config(steps=24, questions=8, rollouts=8))
    assert "nothing_moves" in examine(tmp_path / "run").fine


class Exploding(Other):
    """Its learning rate becomes 100 after some steps."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def update(self) -> float:
        self.left -= 1
        if self.left < 0:
            self.optimizer.param_groups[0]["lr"] = 100.0
        return super().update()


def test_a_learning_rate_of_100_late_in_a_run_is_a_collapse(tmp_path: Path) -> None:
    train(
        tmp_path / "run", ONE, config(steps=32, questions=8, rollouts=8, credit="grpo"), policy=Exploding(24)
    )
    finding = found(tmp_path / "run", "collapse")
    for name in ("entropy", "policy_kl", "clip_share"):
        assert name in finding.evidence


def test_a_learning_rate_of_100_from_the_start_makes_it_sure_of_what_is_wrong(tmp_path: Path) -> None:
    train(tmp_path / "run", ONE, config(learning_rate=100.0, credit="grpo"))
    finding = found(tmp_path / "run", "entropy_gone")
    assert "in step 1" in finding.evidence and "--entropy" in finding.action


@pytest.mark.parametrize("aggregation", ["token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
def test_sums_are_not_told_as_nats_a_token(tmp_path: Path, aggregation: str) -> None:
    train(tmp_path / "run", ONE, config(aggregation=aggregation, kl=0.1))
    unchecked = examine(tmp_path / "run").unchecked
    for name in ("first_kl", "entropy_gone"):
        assert unchecked[name] == f"entropy and kl are no means over tokens under aggregation {aggregation}"
    train(tmp_path / "mean", ONE, config(aggregation="seq-mean-token-mean", kl=0.1))
    assert {"first_kl", "entropy_gone"} <= set(examine(tmp_path / "mean").fine)


# --- Memory and searches -----------------------------------------------------------------------------------


def test_a_policy_that_keeps_nothing_has_empty_memories(tmp_path: Path) -> None:
    policy = Other()
    with torch.no_grad():
        policy.heads.keep.out.bias.fill_(-60.0)  # type: ignore[union-attr,operator]
    train(tmp_path / "run", ONE, config(), policy=policy)
    assert "100% of memories are empty" in found(tmp_path / "run", "memory_empty").evidence


def test_texts_that_cannot_be_read_are_named_before_what_comes_of_them(tmp_path: Path) -> None:
    train_text(tmp_path / "run", lambda prompt, updates: "I would have to think.", steps=4)
    finding = found(tmp_path / "run", "invalid_rounds")
    assert finding.evidence == (
        "100% of rounds are invalid in the last quarter of steps 1-4; 22 tokens are written in a call then"
    )
    diagnosis = examine(tmp_path / "run")
    first, second = diagnosis.findings
    assert (first.symptom, second.symptom) == ("invalid_rounds", "no_advantage")
    assert second.action.endswith("see invalid_rounds")
    assert diagnosis.unchecked["memory_empty"].endswith("see invalid_rounds")


def test_where_no_memory_is_written_that_is_the_reason(tmp_path: Path) -> None:
    words = itertools.cycle(("who", "where it was", "when"))

    def script(prompt: str, updates: int) -> str:
        known = "(16 rounds left)" not in prompt
        return "<answer>nobody</answer>" if known else f"<search>{next(words)}</search>"

    train_text(tmp_path / "run", script, steps=2)
    finding = found(tmp_path / "run", "no_advantage")
    assert finding.action.startswith("no memory is written")


def test_a_memory_term_that_is_dead_everywhere_is_named(tmp_path: Path) -> None:
    train(tmp_path / "run", ONE, config(credit_options={"floor": 1e6}))
    finding = found(tmp_path / "run", "memory_term")
    assert "teach nothing in 32 of 32 groups of 8 unsolved steps from steps 1-8" in finding.evidence
    assert "--credit grpo" in finding.action
    train(tmp_path / "alive", ONE, config())
    assert "memory_term" not in names(tmp_path / "alive")


def test_searches_that_take_longer_each_step_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, now = SearchQAArrayVectorEnv.step, {"step": 0}

    def slow(self: SearchQAArrayVectorEnv, actions: Any) -> Any:
        time.sleep(0.03 * now["step"])
        return play(self, actions)

    def count(policy: Policy) -> Draw:
        draw = ToyDraw(policy, ONE, FEW.rollouts, 0)  # type: ignore[arg-type]

        def counted(step: int, attempt: int, questions: int) -> Rollouts:
            now["step"] = step
            return draw(step, attempt, questions)

        return counted

    monkeypatch.setattr(SearchQAArrayVectorEnv, "step", slow)
    train(tmp_path / "run", ONE, config(), draw=count)
    finding = found(tmp_path / "run", "retrieval_slow")
    assert "in the first quarter of steps 1-8" in finding.evidence


def test_a_memory_that_is_longer_after_each_update_grows(tmp_path: Path) -> None:
    def script(prompt: str, updates: int) -> str:
        if "<information>" not in prompt:
            return "<search>zzz</search>"
        return f"<mem>{'so ' * 4 * (updates + 1)}</mem><answer>nobody</answer>"

    train_text(tmp_path / "run", script, steps=12)
    finding = found(tmp_path / "run", "memory_grows")
    assert "memory_length 8.0 to 44.0" in finding.evidence
    assert "max_memory_tokens" in finding.action


def test_memories_that_name_what_was_never_shown_are_counted(tmp_path: Path) -> None:
    known = {question.text: question.answers[0] for question in some_questions()}

    def script(prompt: str, updates: int) -> str:
        answer = next(answer for text, answer in known.items() if text in prompt)
        if "<information>" not in prompt:
            return "<search>zzz</search>"
        return f"<mem>It is {answer}.</mem><answer>{answer}</answer>"

    train_text(tmp_path / "run", script, steps=2)
    finding = found(tmp_path / "run", "guessed")
    assert finding.evidence.startswith("8 memories name an answer that was not shown; a rollout has 1.000")


def test_memories_that_copy_what_was_shown_are_no_guesses(tmp_path: Path) -> None:
    known = {question.text: question for question in some_questions()}

    def script(prompt: str, updates: int) -> str:
        question = next(question for text, question in known.items() if text in prompt)
        if "<information>" not in prompt:
            return f"<search>{question.evidence[-1].title}</search>"
        shown = prompt.partition("<information>")[2].partition("</information>")[0]
        return f"<mem>{shown.strip()}</mem><answer>{question.answers[0]}</answer>"

    train_text(tmp_path / "run", script, steps=2)
    diagnosis = examine(tmp_path / "run")
    assert "guessed" in diagnosis.fine


# --- Two runs ----------------------------------------------------------------------------------------------


def test_two_runs_of_one_seed_are_compared(
    healthy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "a", ONE, config(steps=3))
    train(tmp_path / "b", ONE, config(steps=3))
    assert examine(tmp_path / "a", tmp_path / "b").fine["not_reproduced"] == "3 steps are equal bit for bit"

    def unseeded(policy: Policy) -> Draw:
        draws = [ToyDraw(policy, ONE, FEW.rollouts, seed) for seed in (0, 1)]  # type: ignore[arg-type]
        return lambda step, attempt, questions: draws[step >= 2](step, attempt, questions)

    train(tmp_path / "c", ONE, config(steps=3), draw=unseeded)
    finding = examine(tmp_path / "a", tmp_path / "c").findings[0]
    assert finding.symptom == "not_reproduced"
    assert finding.evidence.startswith("first different in step 2: ")
    assert main(["doctor", str(tmp_path / "a"), "--against", str(tmp_path / "c")]) == 1
    assert "not_reproduced" in capsys.readouterr().out
    same = tmp_path / "b" / ".." / "a"
    assert main(["doctor", str(tmp_path / "a"), "--against", str(same)]) == 2
    assert "wanted another run of the settings of" in capsys.readouterr().err
    assert main(["doctor", str(tmp_path / "a"), "--against", str(healthy)]) == 2
    error = capsys.readouterr().err
    assert "wanted a run of the same settings" in error and "config.questions: 4 / 8" in error
    assert "config.steps" not in error


def test_runs_of_another_length_are_compared_as_far_as_both_go(tmp_path: Path) -> None:
    for steps in (3, 5):
        train(tmp_path / str(steps), ONE, config(steps=steps))
    for one, other in (("3", "5"), ("5", "3")):
        fine = examine(tmp_path / one, tmp_path / other).fine
        assert fine["not_reproduced"] == "3 steps are equal bit for bit"


# --- The command -------------------------------------------------------------------------------------------


def test_findings_are_told_in_a_table_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run", Toy(objectives=4, worlds=60), config(steps=2, credit="grpo"))
    assert main(["doctor", str(tmp_path / "run")]) == 1
    told = capsys.readouterr().out
    assert "no_advantage" in told and "checked, fine: sampler_gap" in told
    assert main(["doctor", str(tmp_path / "run"), "--json"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert value["run"] == str(tmp_path / "run")
    assert [finding["symptom"] for finding in value["findings"]] == ["no_advantage"]
    assert set(value["findings"][0]) == {"symptom", "severity", "evidence", "threshold", "action"}
    assert set(value["fine"]) | set(value["unchecked"]) | {"no_advantage"} == set(SYMPTOMS)


def test_what_is_no_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "wanted a training run, found none" in error
    train(tmp_path / "run", ONE, config(steps=2))
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b"")
    assert main(["doctor", str(tmp_path / "run")]) == 2
    assert "wanted at least one row" in capsys.readouterr().err


def test_supervised_learning_has_few_figures_and_no_finding(tmp_path: Path) -> None:
    with Run(tmp_path / "run", {"config": {"steps": 2}}) as run:
        for step in run.steps(Other(), 2, 2):
            run.log(step, loss=1.0)
    diagnosis = examine(tmp_path / "run")
    assert diagnosis.findings == () and diagnosis.fine == {}
    assert diagnosis.unchecked["not_finite"] == "skipped_updates, grad_norm not in the metrics"


def test_figures_that_are_none_are_not_looked_at(healthy: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(healthy, tmp_path / "run"))
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text.replace('"success":', '"success":"x","was":'))
    (run / "settings.json").write_text('{"config": 3}')
    diagnosis = examine(run)
    assert diagnosis.unchecked["no_advantage"] == "success not in the metrics"
    assert "sampler_gap" in diagnosis.fine


def test_every_symptom_has_a_run_that_shows_it() -> None:
    """The names of the tests above are not enough: each symptom stands in one as the thing to be found."""
    text = Path(__file__).read_text()
    for name in SYMPTOMS:
        assert f'"{name}")' in text, name
