"""Tests tools/check_words.py."""

import importlib.util
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location(
    "check_words", ROOT / "tools/check_words.py")
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)

DOCUMENT = """\
# Contributing

| `avoid this` | outside of the section |

## Words

| avoid | write |
| --- | --- |
| `colour bar` | bar |
| `pail, pails` | bucket |
| `// Per` | the subject first |

## Commits
"""
AVOIDED = tool.patterns(DOCUMENT)


def problems(name, text):
    return tool.problems(name, text, AVOIDED)


class CheckWordsTest(unittest.TestCase):
    def test_reads_the_table(self):
        self.assertEqual(tool.rows(DOCUMENT), [
            ("colour bar", "bar"), ("pail, pails", "bucket"),
            ("// Per", "the subject first")])

    def test_names_line_and_replacement(self):
        self.assertEqual(problems("a.md", "one\n\nTwo Pails.\n"),
                         ['a.md:3: "Pails"; write bucket'])

    def test_whole_words_only(self):
        self.assertEqual(problems("a.md", "impail pailful --max-pail pail_size"), [])

    def test_finds_phrases_across_comment_lines(self):
        text = "int a;\n  // A colour\n  // bar.\n"
        self.assertEqual(problems("a.h", text), ['a.h:2: "colour // bar"; write bar'])
        self.assertEqual(len(problems("a.py", "# A colour\n# bar.\n")), 1)

    def test_does_not_join_what_code_separates(self):
        self.assertEqual(problems("a.h", "int a;  // colour\nint b;  // bar\n"), [])

    def test_checks_comments_and_strings_but_no_code(self):
        self.assertEqual(problems("a.cc", "int pail = '\"';\n"), [])
        self.assertEqual(len(problems("a.cc", 'f("a pail");')), 1)
        self.assertEqual(len(problems("a.cc", 'f(R"x(a "pail")x");')), 1)
        self.assertEqual(len(problems("a.cu", "/* a\n pail */")), 1)
        self.assertEqual(problems("a.py", "pail = 1\n"), [])
        self.assertEqual(len(problems("a.py", '"""Doc.\n\nA pail.\n"""\n')), 1)

    def test_capitals_matter_in_a_phrase_that_has_them(self):
        self.assertEqual(len(problems("a.h", "// Per row.\n")), 1)
        self.assertEqual(problems("a.h", "int a;  // per row\n"), [])

    def test_leaves_out_its_own_table(self):
        self.assertEqual(problems("CONTRIBUTING.md", DOCUMENT), [])
        self.assertEqual(len(problems("CONTRIBUTING.md", "a pail\n")), 1)

    def test_checks_the_length_of_subjects(self):
        self.assertEqual(tool.subject_problems(["x" * 72]), [])
        self.assertEqual(len(tool.subject_problems(["x" * 73])), 1)

    def test_the_list_of_the_project_is_short(self):
        listed = tool.rows(tool.LIST.read_text(encoding="utf-8"))
        self.assertGreater(len(listed), 0)
        self.assertLessEqual(len(listed), 30)


if __name__ == "__main__":
    sys.exit(unittest.main())
