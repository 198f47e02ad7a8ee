#!/usr/bin/env python3
"""Writes unicode_table.cc: pip install unicodedata2==16.0.0

The version is that of the reference tokenizers (HuggingFace tokenizers 0.23,
tiktoken 0.14), not that of a distribution: text must become the same tokens
everywhere.
"""
import unicodedata2

WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B),
               0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
# Characters of \w other than letters, marks and numbers: joiners, and the
# Alphabetic letters in circles and squares.
OTHER_WORD = {0x200C, 0x200D, *range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A),
              *range(0x1F150, 0x1F16A), *range(0x1F170, 0x1F18A)}
# In the order of UnicodeClass.
OTHER, SPACE, LETTER, MARK, DECIMAL, LETTER_NUMBER, OTHER_NUMBER, WORD = range(8)
NUMBERS = {"Nd": DECIMAL, "Nl": LETTER_NUMBER, "No": OTHER_NUMBER}


def class_of(code):
    category = unicodedata2.category(chr(code))
    if code in WHITE_SPACE:
        return SPACE
    if code in OTHER_WORD or category == "Pc":
        return WORD
    return {"L": LETTER, "M": MARK}.get(category[0], NUMBERS.get(category, OTHER))


entries = []
previous = None
for code in range(0x110000):
    if class_of(code) != previous:
        previous = class_of(code)
        entries.append(f"0x{code << 3 | previous:x}")

print("// Written by make_unicode_table.py from Unicode "
      f"{unicodedata2.unidata_version}. Do not edit.")
print('#include "engine/tokenizer/unicode_class.h"\n')
print("namespace recurve {\n\n// clang-format off")
print(f"const std::array<uint32_t, kUnicodeTableSize> kUnicodeTable = {{")
for i in range(0, len(entries), 9):
    print("    " + ", ".join(entries[i:i + 9]) + ",")
print("};\n// clang-format on\n\n}  // namespace recurve")
assert len(entries) == 2012, len(entries)  # kUnicodeTableSize
