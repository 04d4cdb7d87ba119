"""How many tokens an image of a given size costs, by model. Pure arithmetic, from the providers' documentation.

Each rule names the page that its numbers come from. The pages were read on 2026-11-23 in excerpts; the numbers of
Gemma, Qwen3-VL, LLaVA, Vertex and the largest images of Claude are from descriptions by others. A model without a rule
counts as gpt-4o; calibration corrects the error. Names of rules are stored with conversations
(`Conversation.token_counter_name`): a rule keeps its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import msgspec

PATCH_PIXELS: Final = 32
TILE_PIXELS: Final = 512
LONG_SIDE_PIXELS: Final = 2048
SHORT_SIDE_PIXELS: Final = 768

ImageCost = Callable[[int, int, bool], int]
"""Returns tokens for width and height in pixels, and whether detail `low` was asked for."""


class ImageRule(msgspec.Struct, frozen=True):
    """The image cost of the models whose name matches `pattern`."""

    name: str
    pattern: str
    cost: ImageCost


def make_tile_image_cost(base_tokens: int, tile_tokens: int) -> ImageCost:
    """The image is shrunk to 2048 pixels on its longer side, then to 768 on its shorter side, and covered with tiles of
    512 pixels. Detail `low` costs only `base_tokens`.
    """

    def cost(width: int, height: int, is_low: bool) -> int:
        if is_low:
            return base_tokens
        shrink = min(1.0, LONG_SIDE_PIXELS / max(width, height))
        shrink = min(shrink, SHORT_SIDE_PIXELS / min(width, height))
        across, down = (math.ceil(round(side * shrink) / TILE_PIXELS) for side in (width, height))
        return base_tokens + tile_tokens * max(1, across) * max(1, down)

    return cost


def make_patch_image_cost(multiplier: float, max_patches: int = 1536) -> ImageCost:
    """The image is shrunk until `max_patches` patches of 32 pixels cover it; each patch costs `multiplier` tokens.
    Detail `low` makes no difference.
    """

    def cost(width: int, height: int, is_low: bool) -> int:
        across, down = math.ceil(width / PATCH_PIXELS), math.ceil(height / PATCH_PIXELS)
        if across * down > max_patches:
            shrink = math.sqrt(PATCH_PIXELS**2 * max_patches / (width * height))
            wide, high = width * shrink / PATCH_PIXELS, height * shrink / PATCH_PIXELS
            # The provider shrinks once more, so that at least one side is a whole number of patches.
            shrink = min(max(1, math.floor(wide)) / wide, max(1, math.floor(high)) / high)
            # Rounding to 6 digits: a whole number must not become the next one by a floating-point error.
            across, down = math.ceil(round(wide * shrink, 6)), math.ceil(round(high * shrink, 6))
        return math.ceil(round(min(max_patches, across * down) * multiplier, 6))

    return cost


def make_grid_image_cost(
    patch_pixels: int, long_side_pixels: int, *, max_patches: int | None = None, row_end_tokens: int = 0
) -> ImageCost:
    """The image is shrunk to `long_side_pixels` and to `max_patches` patches; each patch costs a token, and the end of
    each row of patches `row_end_tokens`."""

    def cost(width: int, height: int, is_low: bool) -> int:
        shrink = min(1.0, long_side_pixels / max(width, height)) / patch_pixels
        tokens = (math.ceil(width * shrink) + row_end_tokens) * math.ceil(height * shrink)
        return tokens if max_patches is None else min(max_patches, tokens)

    return cost


def make_rounded_image_cost(patch_pixels: int, min_patches: int, max_patches: int) -> ImageCost:
    """Both sides are rounded to whole patches, `min_patches` to `max_patches` in all; each patch costs a token, and the
    image two more.
    """

    def cost(width: int, height: int, is_low: bool) -> int:
        wide, high = width / patch_pixels, height / patch_pixels
        across, down = max(1, round(wide)), max(1, round(high))
        if across * down > max_patches:
            shrink = math.sqrt(max_patches / (wide * high))
            across, down = max(1, math.floor(wide * shrink)), max(1, math.floor(high * shrink))
        elif across * down < min_patches:
            grow = math.sqrt(min_patches / (wide * high))
            across, down = math.ceil(wide * grow), math.ceil(high * grow)
        return min(max_patches, across * down) + 2

    return cost


def make_crop_image_cost(crop_tokens: int, small_pixels: int, large_pixels: int) -> ImageCost:
    """A small image costs `crop_tokens`, and so does each crop of a larger one. Crops are squares of 256 to 768 pixels;
    within these bounds their side is two thirds of the image's shorter side.
    """

    def cost(width: int, height: int, is_low: bool) -> int:
        if max(width, height) <= small_pixels:
            return crop_tokens
        shrink = min(1.0, large_pixels / max(width, height))
        side = min(768, max(256, math.floor(min(width, height) * shrink / 1.5)))
        return crop_tokens * math.ceil(width * shrink / side) * math.ceil(height * shrink / side)

    return cost


def make_fixed_image_cost(tokens: int) -> ImageCost:
    """Each image costs the same."""
    return lambda width, height, is_low: tokens


DEFAULT_IMAGE_RULE: Final = ImageRule("gpt-4o", r"^gpt-4o|^gpt-4\.1|^gpt-4\.5", make_tile_image_cost(85, 170))
"""https://platform.openai.com/docs/guides/images-vision (calculating costs): gpt-4o, gpt-4.1 and gpt-4.5."""

IMAGE_RULES: Final = (
    # https://platform.openai.com/docs/guides/images-vision: base and tile of models that count tiles, multiplier of
    # models that count patches.
    ImageRule("gpt-4o-mini", r"^gpt-4o-mini", make_tile_image_cost(2833, 5667)),
    ImageRule("o1", r"^o[13]\b", make_tile_image_cost(75, 150)),
    ImageRule("computer-use", r"^computer-use-preview", make_tile_image_cost(65, 129)),
    ImageRule("o4-mini", r"^o4-mini|^codex-mini", make_patch_image_cost(1.72)),
    ImageRule("gpt-4.1-mini", r"^gpt-4\.1-mini", make_patch_image_cost(1.62)),
    ImageRule("gpt-4.1-nano", r"^gpt-4\.1-nano", make_patch_image_cost(2.46)),
    # The guide says 1.62 for gpt-5-mini and 2.46 for gpt-5-nano. The API reports 1.2 and 1.5, as OpenAI's price
    # calculator does: https://community.openai.com/t/1377015, which has later models of the family too.
    ImageRule("gpt-5-nano", r"^gpt-5-nano", make_patch_image_cost(1.5)),
    ImageRule("gpt-5-mini", r"^gpt-5(\.\d+)?-(mini|nano)|^gpt-5\.[23]\b", make_patch_image_cost(1.2)),
    ImageRule("gpt-5.4", r"^gpt-5\.([4-9]|\d\d)", make_patch_image_cost(1.2, max_patches=2500)),
    ImageRule("gpt-5", r"^gpt-5", make_tile_image_cost(70, 140)),
    # https://platform.claude.com/docs/en/build-with-claude/vision: a token for each 28 x 28 pixels (before: width x
    # height / 750, which is 4 % more), after the image was shrunk to the model's native resolution.
    ImageRule("claude-large", r"claude-opus-(4[-.][7-9]|[5-9])", make_grid_image_cost(28, 2576, max_patches=4784)),
    ImageRule("claude", r"claude", make_grid_image_cost(28, 1568, max_patches=1568)),
    # https://ai.google.dev/gemini-api/docs/media-resolution: the default of Gemini 3 is 1,120 for each image.
    ImageRule("gemini-3", r"gemini-([3-9]|\d\d)", make_fixed_image_cost(1120)),
    # https://ai.google.dev/gemini-api/docs/image-understanding (token calculation): 258 up to 384 pixels, then for each
    # crop of floor(shorter side / 1.5) pixels; at most 3,072 pixels a side. Bounds of a crop:
    # https://cloud.google.com/vertex-ai/generative-ai/docs/multimodal/image-understanding
    ImageRule("gemini", r"gemini", make_crop_image_cost(258, 384, 3072)),
    # https://ai.google.dev/gemma/docs/core: 256 tokens for each image.
    ImageRule("gemma-3", r"gemma-?3", make_fixed_image_cost(256)),
    # https://huggingface.co/Qwen/Qwen3-VL-8B-Instruct, preprocessor_config.json: patches of 16 pixels, merged 2 x 2;
    # 65,536 to 16,777,216 pixels.
    ImageRule("qwen3-vl", r"qwen-?3.*vl", make_rounded_image_cost(32, 64, 16_384)),
    # https://huggingface.co/Qwen/Qwen2.5-VL-7B-Instruct: "4-16384 visual tokens per image", one for 28 x 28 pixels.
    ImageRule("qwen2-vl", r"qwen-?2(\.5)?-?vl|qwen-vl", make_rounded_image_cost(28, 4, 16_384)),
    # https://huggingface.co/mistral-community/pixtral-12b, processor and preprocessor configuration: patches of 16
    # pixels, 1,024 on the longer side, [IMG_BREAK] or [IMG_END] after each row.
    ImageRule("pixtral", r"pixtral", make_grid_image_cost(16, 1024, row_end_tokens=1)),
    # https://huggingface.co/mistralai/Mistral-Small-3.1-24B-Instruct-2503, params.json: patches of 14 pixels, merged
    # 2 x 2; 1,540 on the longer side.
    ImageRule("mistral", r"mistral-(small|medium)|magistral", make_grid_image_cost(28, 1540, row_end_tokens=1)),
    # https://huggingface.co/docs/transformers/model_doc/llava and llava_next: 24 x 24 patches, at most five crops.
    ImageRule("llava-next", r"llava.*(1\.6|next)", make_fixed_image_cost(5 * 576)),
    ImageRule("llava", r"llava", make_fixed_image_cost(576)),
)

_RULES_BY_NAME: Final = {rule.name: rule for rule in (*IMAGE_RULES, DEFAULT_IMAGE_RULE)}


@lru_cache(maxsize=1_000)
def choose_image_rule(model: str) -> ImageRule:
    """Returns the rule of a model, by its name at the provider; a provider's or owner's name may stand before it."""
    name = model.lower().rsplit("/", 1)[-1].removeprefix("ft:")
    return next((rule for rule in IMAGE_RULES if re.search(rule.pattern, name)), DEFAULT_IMAGE_RULE)


def find_named_image_rule(name: str) -> ImageRule:
    """Returns the rule of that name; the default if there is none (any more)."""
    return _RULES_BY_NAME.get(name, DEFAULT_IMAGE_RULE)
