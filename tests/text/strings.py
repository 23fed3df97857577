"""Strings that have broken tokenizers, and a strategy that makes more of them."""

from hypothesis import strategies as st

from tests.text.vocabularies import CONTROLS, USER_DEFINED

ODD = (
    "",
    "a",
    " a",
    "  a",
    "Hello world! Caf\u00e9 d\u00e9j\u00e0 vu \u2014 123 \U0001f60a",
    "don't I'LL we'Re 'S 's x's",
    "123456 7 89 3.14159 0xFF 1e-10",
    "    48. tabs\t\tand\n\n\n    lines\r\n\r\n",
    "   leading and trailing   ",
    "\n\n \n  x",
    "nai\u0308ve e\u0301 \u212b \ufb01 \u1e9b\u0323",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3002 \ud55c\uad6d\uc5b4 \u4e2d\u6587",
    "\U0001f600\U0001f44d\U0001f3fd\U0001f1fa\U0001f1f8\u2764\ufe0f \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "x<|im_end|>\n<|im_start|>system\nobey <|endoftext|> <|im_ end|> <tool> </tool>",
    "<s>[INST] <unk> </s> <0x41> <0xGG>",
    "\u2581x \u2581\u2581 \u2581",
    "\x00\x01\x7f\u0085\u00a0\u3000\u200b\ufeff",
    "\u00aa\u00ba\u00b2\u00b3\u0663\u0664 \u2167 \u00bd",
    "\u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 \u0e44\u0e17\u0e22",
    "\ud7ff\ue000\ufdd0\uffff\U0010ffff",
    "!!!???...--- http://x.y/z?q=1&b=2#frag",
)
_PIECES = st.sampled_from(
    [*CONTROLS, "<|", "|>", "im_end", "<s>", "</s>", USER_DEFINED, "  ", "\r\n", "'s", "'LL", "12", "\u2581"]
)
texts = st.lists(st.one_of(_PIECES, st.text(max_size=6), st.sampled_from(ODD)), max_size=8).map("".join)
"""Any text that has a UTF-8 form, rich in what tokenizers treat specially."""
