"""`DecoderConformance`: what every decoder must do, as tests for pytest that a plugin author subclasses in three lines.

class TestMine(DecoderConformance):
    decoder = mine
    params = {"width": 3}

All runs are on a fake model whose paging is checked at every read; nothing is downloaded.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, ClassVar

from chatserve.decoding import Decoder, Sampling
from chatserve.engine import GenerationRequest
from chatserve.errors import GenerationError, RequestError
from chatserve.testing.byte_tokenizer import END_TOKEN_ID
from chatserve.testing.fake_model import Faulty, LogitsFunction, Restricted
from chatserve.testing.scenes import (
    LETTERS,
    LETTERS_AND_END,
    SAMPLINGS,
    company_request,
    grammar,
    has_read,
    has_stopped,
    neighbour,
    random_model,
    read_plainly,
)
from chatserve.testing.trial import Answer, Record, TrialEngine


class DecoderConformance:
    """Subclass it in a test file under a name that begins with ``Test``, and set `decoder`.

    Attributes:
        decoder: the decoder under test.
        params: its parameters, as a request gives them.
        n: choices that are asked for.
        sampling: further fields of `Sampling` for all requests.
        prompt: what is completed; printable ASCII.
        max_tokens: length of the answers.
        ends_by_itself: the decoder ends choices by rules of its own beside the request's: it calls `Context.finish`,
            or returns.
        choices_differ: with n > 1, not all choices are the same.
        num_seeds: seeds, and so random models, that each test tries.
        decoder_timeout: seconds that the decoder may take between two awaits; a busy machine may stall it for one.
    """

    decoder: ClassVar[Decoder]
    params: ClassVar[dict[str, Any]] = {}
    n: ClassVar[int] = 1
    sampling: ClassVar[dict[str, Any]] = {}
    prompt: ClassVar[str] = "the cat sat on the mat, the cat "
    max_tokens: ClassVar[int] = 8
    ends_by_itself: ClassVar[bool] = False
    choices_differ: ClassVar[bool] = True
    num_seeds: ClassVar[int] = 2
    decoder_timeout: ClassVar[float] = 3.0

    def prepare(self, engine: TrialEngine) -> None:
        """Called with each new engine before its first request, to register what the decoder needs."""

    # parameters

    def test_parameters_are_accepted_and_unknown_ones_refused(self) -> None:
        """The parameters given are accepted, and an unknown one is refused."""
        try:
            self.decoder.make_params(self.params)
        except RequestError as error:
            raise AssertionError(f"the parameters {self.params} are refused: {error}") from error
        try:
            self.decoder.make_params({**self.params, "no_such_parameter": 1})
        except RequestError:
            return
        raise AssertionError("an unknown parameter was accepted; derive the parameters from chatserve.decoding.Params")

    def test_any_number_of_choices_is_served_or_refused(self) -> None:
        """Each n is either answered in full or refused before the first token."""
        for n in (1, 2, 4):
            engine = self._engine()
            try:
                record = engine.start(self._request(n=n))
            except RequestError:
                assert n != self.n, f"n = {n} is refused; set `n` to a number that the decoder serves"
            else:
                while engine.step():
                    pass
                self._check_answered(record, n)
            engine.check_empty()

    def test_it_holds_no_more_sequences_than_it_declares(self) -> None:
        """`sequences=` of the decorator is an upper bound of what is held at once."""
        declared = self.decoder.num_sequences(self.decoder.make_params(self.params), self.n)
        for seed in self._seeds():
            engine = self._engine(seed)
            record = engine.start(self._request(seed))
            while engine.step():
                held = int(engine.stats()["sequences"])
                assert held <= declared, f"{held} sequences are held; the decorator's `sequences` says {declared}"
            record.answers()

    # determinism

    def test_the_same_seed_gives_the_same_answer(self) -> None:
        """The answer is a function of model, request and seed."""
        for seed, fields in enumerate(SAMPLINGS):
            request = self._request(seed, **fields)
            first, second = self._solo(request, seed), self._solo(request, seed)
            assert first == second, f"two runs differ, {fields}:\n{first}\n{second}"

    def test_choices_differ(self) -> None:
        """With several choices, not all are the same."""
        if self.n == 1 or not self.choices_differ:
            return
        answers = [answer.token_ids for seed in self._seeds() for answer in self._solo(self._request(seed), seed)]
        several = [answers[place : place + self.n] for place in range(0, len(answers), self.n)]
        assert any(group.count(group[0]) < self.n for group in several), f"all choices are the same: {several[0]}"

    # when an answer ends

    def test_answers_end_at_an_end_token(self) -> None:
        """An end token ends a choice with "stop" and is not part of the text."""
        for seed in self._seeds():
            answers = self._solo(self._request(seed, max_tokens=30), seed, end_bias=2.5)
            for answer in answers:
                assert END_TOKEN_ID in answer.token_ids or self.ends_by_itself, f"it never ended: {answer}"

    def test_answers_end_at_max_tokens(self) -> None:
        """No choice is longer than max_tokens, and one that reaches it ends with "length"."""
        for max_tokens in (1, 2, 6):
            for seed in self._seeds():
                answers = self._solo(self._request(seed, max_tokens=max_tokens, ignore_eos=True), seed, LETTERS)
                for answer in answers:
                    as_asked = len(answer.token_ids) == max_tokens and answer.finish_reason == "length"
                    assert as_asked or self.ends_by_itself, f"max_tokens is {max_tokens}, but: {answer}"

    def test_answers_have_min_tokens(self) -> None:
        """No choice ends before min_tokens, whatever the model and the stop strings say."""
        for seed in self._seeds():
            request = self._request(seed, min_tokens=6, stop=("a", "b", "c"))
            for answer in self._solo(request, seed, end_bias=20.0):
                assert len(answer.token_ids) >= 6 or self.ends_by_itself, f"min_tokens is 6, but: {answer}"

    def test_answers_end_at_stop_strings(self) -> None:
        """A stop string ends a choice with "stop"; the text ends before it, also when it streams."""
        has_stopped = False
        for seed in self._seeds():
            for stop in (("ab", "ca"), ("b",), ("abc", "bc", "cab"), ("aaaa", "cc")):
                request = self._request(seed, stop=stop, max_tokens=14)
                answers = self._solo(request, seed, (*b"abc", END_TOKEN_ID), end_bias=-1.0)
                has_stopped |= any(answer.finish_reason == "stop" for answer in answers)
        assert has_stopped or self.ends_by_itself, "no stop string ever ended an answer"

    def test_forbidden_tokens_are_never_published(self) -> None:
        """Tokens of log-probability -inf, as a grammar makes them, never appear, even where only one is allowed."""
        for seed in self._seeds():
            model = Restricted(random_model(seed), grammar)
            [record] = self._engine(model=model).run(self._request(seed))
            for answer in record.answers():
                context = list(self.prompt.encode())
                for token in answer.token_ids:
                    assert token in grammar(context), f"token {token} is forbidden after {bytes(context[-3:])!r}"
                    context.append(token)

    def test_logit_bias_forbids_tokens(self) -> None:
        """A logit_bias of -100 keeps tokens out of the answer."""
        forbidden = LETTERS[::2]
        for seed in self._seeds():
            for answer in self._solo(self._request(seed, logit_bias=dict.fromkeys(forbidden, -100.0)), seed):
                found = set(forbidden) & set(answer.token_ids)
                assert not found, f"tokens {sorted(found)} were forbidden by logit_bias"

    # what a client sees

    def test_published_tokens_are_never_taken_back(self) -> None:
        """Whatever the model says, what is out stays out, and the pieces join to the whole."""
        for seed in range(4 * self.num_seeds):
            stop = ("ab", "c") if seed % 2 else ()
            self._solo(self._request(seed, stop=stop), seed, end_bias=float(seed % 5))

    def test_log_probabilities_join_to_the_published_tokens(self) -> None:
        """The token records are those of the published tokens, in order, and their bytes are the text."""
        for seed in self._seeds():
            request = self._request(seed, top_logprobs=2, stop=("e",))
            [record] = self._engine(seed).run(request)
            for choice, answer in enumerate(record.answers()):
                tokens = [token for delta in record.of(choice) for token in delta.tokens]
                ids = [token.token_id for token in tokens]
                assert ids == answer.token_ids, f"records of {ids} for the tokens {answer.token_ids}"
                assert b"".join(token.bytes for token in tokens) == answer.text.encode(), f"not the bytes of {answer}"
                for token in tokens:
                    _check_logprobs(token.logprob, [(other.token_id, other.logprob) for other in token.top], token)
            plain = self._solo(self._request(seed, stop=("e",)), seed)
            assert record.answers() == plain, "asking for log-probabilities changed the answer"

    # load changes nothing

    def test_a_batch_gives_what_solo_runs_give(self) -> None:
        """Beside other requests, also of its own kind, it gives the answer of a run alone."""
        engine = self._engine()
        ours = [self._request(seed, **SAMPLINGS[seed % len(SAMPLINGS)]) for seed in self._seeds()]
        records = []
        for request in ours:
            engine.start(company_request(request.sampling.seed or 0))
            records.append(engine.start(request))
            engine.step()
        while engine.step():
            pass
        engine.check_empty()
        for request, record in zip(ours, records, strict=True):
            self._compare(record, request)

    def test_a_small_token_budget_changes_nothing(self) -> None:
        """Under a token budget smaller than the rows of one await it gives the same answer."""
        for max_batch_tokens in (1, 4):
            request = self._request(max_batch_tokens)
            engine = self._engine(max_batch_tokens=max_batch_tokens)
            _, record = engine.run(company_request(1), request)
            self._compare(record, request)

    def test_rows_deferred_at_random_change_nothing(self) -> None:
        """Under a token budget that changes from step to step it gives the same answer."""
        for seed in self._seeds():
            request, generator = self._request(seed), random.Random(seed)
            engine = self._engine()
            engine.before_step = lambda engine: _set_budget(engine, generator.randint(1, 9))  # noqa: B023
            record, _ = engine.run(request, company_request(seed))
            self._compare(record, request)

    def test_a_pool_so_small_that_it_is_preempted_changes_nothing(self) -> None:
        """In a pool so small that it is preempted it gives the same answer."""
        request, company = self._request(1, ignore_eos=True), company_request(1, n=8, max_tokens=self.max_tokens + 2)
        alone, older = self._engine(), self._engine()
        alone.run(request)
        older.run(company)
        least = max(alone.peak_blocks, older.peak_blocks, self._least_blocks()) + 1
        num_preemptions = 0
        for num_blocks in range(least, alone.peak_blocks + older.peak_blocks):
            engine = self._engine(num_blocks=num_blocks)
            _, record = engine.run(company, request)
            self._compare(record, request)
            num_preemptions += record.request.num_preemptions
            if num_preemptions >= 2:
                return
        is_short = self._count_steps(request) < 4
        assert num_preemptions or is_short, "no pool was so small that the request was preempted; set max_tokens higher"

    def test_preemption_at_random_changes_nothing(self) -> None:
        """With KV taken away at random between steps it gives the same answer."""
        for seed in self._seeds():
            request, generator = self._request(seed), random.Random(seed)
            engine = self._engine()
            engine.before_step = lambda engine: _disturb(engine, generator)  # noqa: B023
            record, _ = engine.run(request, company_request(seed))
            self._compare(record, request)

    # whatever happens, everything is released

    def test_cancelling_at_any_step_releases_everything(self) -> None:
        """Cancelled between or within any two steps it leaves nothing behind, and harms nobody."""
        request, company = self._request(2, max_tokens=4), company_request(2, max_tokens=4)
        expected = self._expected(company)
        for index in range(self._count_steps(request)):
            for is_within in (False, True):
                engine = self._engine()
                ours, theirs = engine.start(request), engine.start(company)
                for _ in range(index):
                    engine.step()
                num_heard = len(ours.deltas)
                _cancel(engine, ours, is_within)
                assert not ours.request.group.live, f"cancelled in step {index}, it still holds sequences"
                while engine.step():
                    pass
                engine.check_empty()
                assert len(ours.deltas) == num_heard or ours.has_ended, "it was heard of after it was cancelled"
                assert theirs.answers() == expected, f"cancelled in step {index}, it changed another request's answer"

    def test_a_failure_of_the_model_at_any_step_releases_everything(self) -> None:
        """When a forward raises the request ends with an error, nothing is left behind, and the next one runs."""
        request = self._request(3, max_tokens=4)
        num_before = self._engine().statistics.num_steps  # of `prepare`
        for index in range(num_before, num_before + self._count_steps(request)):
            engine = self._engine(failures={index: RuntimeError("no more")})
            [failed] = engine.run(request)
            assert isinstance(failed.error, GenerationError), f"the model failed in step {index}, it got no error"
            if failed.error.code != "model_error":
                raise AssertionError(f"the decoder hid the model's failure: {failed.error}") from failed.error
            [again] = engine.run(request)
            self._compare(again, request)

    def test_logits_that_are_no_numbers_end_only_its_request(self) -> None:
        """NaN from the model ends the request with an error, and nobody else's."""
        company = company_request(4)
        expected = self._expected(company)
        for num_more in (0, 1):
            model = Faulty(random_model(0), lambda context: has_read(context, self.prompt, num_more))  # noqa: B023
            ours, theirs = self._engine(model=model).run(self._request(4), company)
            assert isinstance(ours.error, GenerationError) or num_more, "NaN did not end the request"
            assert theirs.answers() == expected, "NaN in one request's rows changed another request's answer"

    # parts

    @classmethod
    def titles(cls) -> Iterator[tuple[str, str]]:
        """(method, first line of its docstring) of each test, in order; for tools that run them without pytest."""
        for name, value in vars(DecoderConformance).items():
            if name.startswith("test_"):
                yield name, (value.__doc__ or name).partition("\n")[0]

    def _seeds(self) -> range:
        return range(self.num_seeds)

    def _engine(
        self,
        seed: int = 0,
        *,
        model: LogitsFunction | None = None,
        failures: dict[int, Exception] | None = None,
        **limits: Any,
    ) -> TrialEngine:
        limits = {"decoder_timeout": self.decoder_timeout, **limits}
        engine = TrialEngine([self.decoder, neighbour], model or random_model(seed), failures=failures, **limits)
        self.prepare(engine)
        return engine

    def _request(self, seed: int = 0, **fields: Any) -> GenerationRequest:
        given = {"n": self.n, "max_tokens": self.max_tokens, "seed": seed, **self.sampling, **fields}
        return GenerationRequest(
            prompt_token_ids=tuple(self.prompt.encode()),
            sampling=Sampling(**given),
            decoder=self.decoder.name,
            decoder_params=self.params,
        )

    def _solo(
        self, request: GenerationRequest, seed: int, letters: tuple[int, ...] = LETTERS_AND_END, end_bias: float = 1.0
    ) -> list[Answer]:
        """The answers of a run alone, on a model of its own, checked against the request's rules."""
        [record] = self._engine(model=random_model(seed, letters, end_bias)).run(request)
        answers = record.answers()
        for choice, answer in enumerate(answers):
            self._check_rules(answer, request.sampling, choice in record.left_open)
        return answers

    def _expected(self, request: GenerationRequest) -> list[Answer]:
        [record] = self._engine().run(request)
        return record.answers()

    def _compare(self, record: Record, request: GenerationRequest) -> None:
        expected, answers = self._expected(request), record.answers()
        assert answers == expected, f"{request.sampling}\nalone: {expected}\nunder load: {answers}"

    def _count_steps(self, request: GenerationRequest) -> int:
        engine = self._engine()
        num_before = engine.statistics.num_steps
        [record] = engine.run(request)
        record.answers()
        return engine.statistics.num_steps - num_before

    def _least_blocks(self) -> int:
        """Blocks without which the engine refuses the request."""
        declared = self.decoder.num_sequences(self.decoder.make_params(self.params), self.n)
        return int(self._engine().stats()["blocks_used"]) + -(-(len(self.prompt) + 1) // 4) + max(1, declared) - 1

    def _check_answered(self, record: Record, n: int) -> None:
        try:
            record.answers()
        except AssertionError as error:
            if n == self.n:
                raise
            hint = "a decoder that does not serve so many refuses them with Rejected"
            raise AssertionError(f"with n = {n}, {error}; {hint}") from error

    def _check_rules(self, answer: Answer, sampling: Sampling, is_left_open: bool) -> None:
        """Text and reason of an answer are what its tokens and the request's rules make them."""
        text, length = read_plainly(answer.token_ids, sampling)
        assert length == len(answer.token_ids), f"tokens behind the end: {answer}"
        assert answer.text == text, f"the text is not that of its tokens, {text!r}: {answer}"
        assert len(answer.token_ids) <= (sampling.max_tokens or 0), f"longer than max_tokens: {answer}"
        if self.ends_by_itself:
            return
        stopped, num_tokens = has_stopped(answer.token_ids, sampling), len(answer.token_ids)
        if not stopped and num_tokens < (sampling.max_tokens or 0):
            how = "it returned" if is_left_open else "it called `finish`"
            raise AssertionError(
                f"{how} before the choice had ended (by end token, stop string or length): {num_tokens} tokens of"
                f" {sampling.max_tokens} were published; if it is meant to, set `ends_by_itself` (--ends-by-itself)"
            )
        expected = "stop" if stopped else "length"
        assert answer.finish_reason == expected, f"the reason should be {expected!r}: {answer}"


def _cancel(engine: TrialEngine, record: Record, is_within: bool) -> None:
    if is_within:
        engine.step(lambda: engine.abort(record.request))
    else:
        engine.abort(record.request)
    engine.check_integrity()


def _check_logprobs(logprob: float | None, top: list[tuple[int, float | None]], token: object) -> None:
    assert logprob is None or logprob <= 1e-5, f"a log-probability above 0: {token}"
    values = [value for _, value in top if value is not None]
    assert len(values) in (0, 2), f"two alternatives were asked for: {token}"
    assert values == sorted(values, reverse=True), f"the alternatives are not sorted: {token}"


def _set_budget(engine: TrialEngine, max_batch_tokens: int) -> None:
    engine.scheduler.limits.max_batch_tokens = max_batch_tokens


def _disturb(engine: TrialEngine, generator: random.Random) -> None:
    """Preempt a running request, or let one sequence give up its KV, as the scheduler does when blocks run out."""
    if engine.scheduler.running and generator.random() < 0.4:
        engine.scheduler.preempt(generator.choice(engine.scheduler.running))
    live = [(request.group, sequence) for request in engine.scheduler.running for sequence in request.group.live]
    if live and generator.random() < 0.4:
        group, sequence = generator.choice(live)
        group.give_up_kv([sequence])
