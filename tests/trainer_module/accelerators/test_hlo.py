import numpy as np
import pytest
import tensorflow as tf

from detloom.trainer_module.accelerators.hlo import facts_of_hlo

ADD = """
%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(f32[] %x, f32[] %y)
}
"""


def module(*lines, before=""):
    body = "\n".join(f"  {line}" for line in lines)
    return f"HloModule m\n{before}\nENTRY %main (a: f32[2]) -> f32[2] {{\n{body}\n}}\n"


def test_a_product_of_matrices():
    """4 x 3 times 3 x 5 in two batches: 2 * (2 * 4 * 5) * 3. 3 inputs become 8, 5 outputs 128."""
    facts = facts_of_hlo(
        module(
            "ROOT %dot.1 = f32[2,4,5]{2,1,0} dot(f32[2,4,3]{2,1,0} %a, f32[2,3,5]{2,1,0} %b), lhs_batch_dims={0}, "
            "lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}"
        )
    )
    assert facts.flops == 240
    assert facts.padded_flops == pytest.approx(240 * 8 / 3 * 128 / 5)
    assert facts.wasted_share == pytest.approx(1 - 3 * 5 / (8 * 128))
    assert facts.moved_bytes == 4 * (2 * 4 * 5 + 2 * 4 * 3 + 2 * 3 * 5)
    assert (facts.num_loops, facts.num_dynamic_dimensions, facts.num_host_transfers) == (0, 0, 0)


@pytest.mark.parametrize(
    ("image", "kernel", "result", "attributes", "flops"),
    [
        # Every position has all taps: 2 * (1 * 4 * 4 * 6) * (3 * 3 * 2).
        ("1,6,6,2", "3,3,2,6", "1,4,4,6", "window={size=3x3}", 2 * 96 * 18),
        # Padded by one: 4 + 6 + 6 + ... taps; along an axis of four, 2 + 3 + 3 + 2 of 12.
        ("1,4,4,2", "3,3,2,6", "1,4,4,6", "window={size=3x3 pad=1_1x1_1}", 2 * 6 * 2 * 10 * 10),
        # Stride 2: the positions 0, 2 of an axis of four, padded by one at the end: 3 + 2 taps.
        ("1,4,4,2", "3,3,2,6", "1,2,2,6", "window={size=3x3 stride=2x2 pad=0_1x0_1}", 2 * 6 * 2 * 5 * 5),
        # Each of the six channels has its own kernel.
        ("1,6,6,6", "3,3,1,6", "1,4,4,6", "window={size=3x3}, feature_group_count=6", 2 * 96 * 9),
        # A kernel with gaps: taps at 0, 2 and 4.
        ("1,6,6,2", "3,3,2,6", "1,2,2,6", "window={size=3x3 rhs_dilate=2x2}", 2 * 24 * 18),
        # An image with gaps, 3 of 5 positions: with a kernel of 2 and no padding, each of four positions has one tap.
        ("1,3,3,2", "2,2,2,6", "1,4,4,6", "window={size=2x2 lhs_dilate=2x2}", 2 * 6 * 2 * 4 * 4),
    ],
)
def test_convolutions(image, kernel, result, attributes, flops):
    line = f"ROOT %c = f32[{result}] convolution(f32[{image}] %a, f32[{kernel}] %b), {attributes}"
    facts = facts_of_hlo(module(line + ", dim_labels=b01f_01io->b01f"))
    assert facts.flops == flops


@pytest.mark.parametrize(
    ("kernel", "groups", "padding"),
    [
        ("3,3,2,6", 1, 8 / 2 * 128 / 6),
        ("3,3,2,256", 1, 8 / 2),
        ("3,3,1,160", 160, 256 / 160),
        ("3,3,2,6", 2, 4 * 128 / 3),
    ],
)
def test_padding_of_convolutions(kernel, groups, padding):
    inputs, outputs = (int(size) for size in kernel.split(",")[2:])
    line = f"ROOT %c = f32[1,4,4,{outputs}] convolution(f32[1,6,6,{inputs * groups}] %a, f32[{kernel}] %b), "
    line += f"window={{size=3x3}}, dim_labels=b01f_01io->b01f, feature_group_count={groups}"
    facts = facts_of_hlo(module(line))
    assert facts.padded_flops / facts.flops == pytest.approx(padding)


def test_only_operations_that_are_not_fused_move_data():
    facts = facts_of_hlo(
        module(
            "%a = f32[10]{0} parameter(0)",
            "%z = f32[] constant(0)",
            "%b = f32[10]{0} exponential(f32[10]{0} %a)",
            "ROOT %r = f32[] reduce(f32[10]{0} %b, f32[] %z), dimensions={0}, to_apply=%add",
            before=ADD,
        )
    )
    assert (facts.flops, facts.moved_bytes) == (0, 40 + 4 + 4)


DOT = "f32[2,2] dot(f32[2,2] %a, f32[2,2] %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}"  # 16 FLOPs
CALLED = f"""
%once (p: f32[2,2]) -> f32[2,2] {{
  ROOT %d = {DOT}
}}

%twice (p: f32[2,2]) -> f32[2,2] {{
  %d = {DOT}
  ROOT %e = {DOT}
}}
"""


@pytest.mark.parametrize(
    ("line", "flops", "num_loops"),
    [
        ("ROOT %r = f32[2,2] call(f32[2,2] %a), to_apply=%twice", 32, 0),
        ("ROOT %r = (s32[], /*index=1*/f32[2,2]) while((s32[], f32[2,2]) %t), condition=%once, body=%twice", 32, 1),
        (
            "ROOT %r = f32[2,2] conditional(s32[] %i, f32[2,2] %a, f32[2,2] %a), branch_computations={%once, %twice}",
            32,
            0,
        ),
        (
            "ROOT %r = f32[2,2] conditional(pred[] %i, f32[2,2] %a, f32[2,2] %a), true_computation=%twice, "
            "false_computation=%once",
            32,
            0,
        ),
    ],
)
def test_called_computations_count_where_they_are_called(line, flops, num_loops):
    facts = facts_of_hlo(module(line, before=CALLED))
    assert (facts.flops, facts.num_loops) == (flops, num_loops)


def test_dynamic_dimensions_and_transfers_are_found_in_all_computations():
    inner = "%inner (p: f32[4]) -> f32[<=4] {\n  ROOT %d = f32[<=4]{0} set-dimension-size(f32[4] %p, s32[] %n)\n}\n"
    facts = facts_of_hlo(
        module(
            "%c = (f32[<=4,<=8], token[]) call(f32[4] %a), to_apply=%inner",
            "%o = token[] outfeed(f32[2] %a, token[] %t), outfeed_shape=f32[2]{0}",
            '%h = f32[2] custom-call(f32[2] %a), custom_call_target="xla_python_cpu_callback"',
            'ROOT %k = f32[2] custom-call(f32[2] %a), custom_call_target="TopK"',
            before=inner,
        )
    )
    assert (facts.num_dynamic_dimensions, facts.num_host_transfers) == (3, 2)


def test_text_that_is_no_module_is_refused():
    with pytest.raises(ValueError, match="no ENTRY"):
        facts_of_hlo("nothing")


def test_facts_of_a_compiled_function():
    """A convolution with "SAME" padding and its gradients, then a product; the sizes are those of the tests above."""
    image = tf.constant(np.ones((2, 4, 4, 2), np.float32))
    kernel = tf.constant(np.ones((3, 3, 2, 6), np.float32))

    @tf.function(jit_compile=True)
    def step(image, kernel):
        with tf.GradientTape() as tape:
            tape.watch([image, kernel])
            loss = tf.reduce_sum(tf.nn.conv2d(image, kernel, 1, "SAME") ** 2)
        return tape.gradient(loss, [image, kernel])

    facts = facts_of_hlo(step.experimental_get_compiler_ir(image, kernel)(stage="hlo"))
    forward = 2 * 2 * 6 * 2 * 10 * 10
    assert facts.flops == 3 * forward  # both gradients multiply the same pairs
    assert facts.moved_bytes > 0
    assert (facts.num_loops, facts.num_dynamic_dimensions, facts.num_host_transfers) == (0, 0, 0)
