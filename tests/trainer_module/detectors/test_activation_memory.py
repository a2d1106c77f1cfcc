import keras

from detloom.trainer_module.detectors.activation_memory import activation_bytes


def test_activations_are_the_outputs_of_all_layers():
    image = keras.Input((4, 6, 3))
    # The image has 4 * 6 * 3 = 72 values and the convolution's output 4 * 6 * 5 = 120: 192 * 4 bytes, times 1.1.
    assert activation_bytes(keras.Model(image, keras.layers.Conv2D(5, 1)(image))) == 845


def test_each_call_of_a_shared_layer_is_counted():
    image, conv = keras.Input((4, 4, 3)), keras.layers.Conv2D(3, 1)
    network = keras.Model(image, conv(conv(image)))
    # Three times 4 * 4 * 3 * 4 = 192 bytes, times 1.1.
    assert activation_bytes(network) == round(1.1 * 3 * 192)


def test_layers_of_a_nested_model_are_counted():
    inner_image = keras.Input((4, 4, 3))
    hidden = keras.layers.Conv2D(7, 1)(inner_image)
    inner = keras.Model(inner_image, keras.layers.Conv2D(2, 1)(hidden))
    image = keras.Input((4, 4, 3))
    # Channels of all outputs: 3 of the image, and 3 + 7 + 2 inside.
    assert activation_bytes(keras.Model(image, inner(image))) == round(1.1 * 16 * 4 * 15)


def test_activations_are_unknown_for_images_of_varying_size():
    image = keras.Input((None, None, 3))
    assert activation_bytes(keras.Model(image, keras.layers.Conv2D(5, 1)(image))) is None
