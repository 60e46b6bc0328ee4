import doctest

import numpy as np

import rec_models.by_name
import rec_models.engine.tape
from rec_models.engine.tape import Tape, Var


def square(tape, x):
    return tape.record(x.value**2, lambda gradient: x.accumulate(gradient * 2 * x.value))


def total(tape, *terms):
    def backward(gradient):
        for term in terms:
            term.accumulate(gradient)

    return tape.record(sum(term.value for term in terms), backward)


def test_gradients_follow_the_chain_rule():
    tape, x = Tape(training=True), Var(np.array([2.0, -1.0]))
    tape.backward(square(tape, square(tape, x)))
    np.testing.assert_array_equal(x.gradient, 4 * x.value**3)


def test_a_var_used_twice_sums_its_gradients():
    tape, x = Tape(training=True), Var(np.array([3.0]))
    tape.backward(total(tape, square(tape, x), x, x))
    np.testing.assert_array_equal(x.gradient, [8.0])


def test_inputs_that_share_one_gradient_array_do_not_disturb_each_other():
    tape, x, y = Tape(training=True), Var(np.array([3.0])), Var(np.array([5.0]))
    both = total(tape, x, y)
    tape.backward(total(tape, both, square(tape, x)))
    np.testing.assert_array_equal(x.gradient, [7.0])
    np.testing.assert_array_equal(y.gradient, [1.0])


def test_closures_run_in_the_reverse_order_of_recording():
    order, tape, x = [], Tape(training=True), Var(np.ones(1))

    def noted(name, source):
        def backward(gradient):
            order.append(name)
            source.accumulate(gradient)

        return tape.record(source.value, backward)

    first, second = noted("first", x), noted("second", x)
    tape.backward(total(tape, first, second))
    assert order == ["second", "first"]


def test_a_branch_that_does_not_reach_the_end_gets_no_gradient():
    tape, x, y = Tape(training=True), Var(np.ones(2)), Var(np.ones(2))
    unused = square(tape, y)
    tape.backward(square(tape, x))
    assert unused.gradient is None
    assert y.gradient is None
    np.testing.assert_array_equal(y.gradient_or_zeros(), [0, 0])


def test_a_step_with_several_results_gets_zeros_for_those_that_are_not_used():
    tape, x = Tape(training=True), Var(np.array([[1.0, 2.0]]))
    left, _ = tape.record_many(
        (x.value[:, :1], x.value[:, 1:]), lambda a, b: x.accumulate(np.concatenate([a, b], axis=1))
    )
    tape.backward(square(tape, left))
    np.testing.assert_array_equal(x.gradient, [[2.0, 0.0]])


def test_a_tape_that_does_not_train_records_nothing():
    tape, x = Tape(training=False), Var(np.ones(1))
    tape.backward(square(tape, x))
    assert x.gradient is None


def test_random_bits_depend_on_step_seed_and_order_only():
    def draws(step_seed):
        tape = Tape(training=True, step_seed=step_seed)
        return [int(tape.random_words(1)[0]) for _ in range(3)]

    assert draws(1) == draws(1)
    assert len(set(draws(1) + draws(2))) == 6
    assert draws(-1) == draws(2**64 - 1), "any integer is a seed"


def test_examples_in_docstrings_are_true():
    for module in (rec_models.engine.tape, rec_models.by_name):
        result = doctest.testmod(module)
        assert result.attempted > 0
        assert result.failed == 0
