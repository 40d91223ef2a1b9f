"""Lists long sentences in the pages of the documentation, the longest first: `make prose`.

python docs/prose.py [WORDS] [PAGE ...]     # default: more than 25 words, all pages but decisions
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
WORDS_MAX = 25
PAGES = ["*.md", "docs/**/*.md", ":(exclude,glob)docs/decisions/2*.md"]

# What is no sentence: code, comments, tables.
NO_PROSE = re.compile(r"^ *```.*?^ *```|^<!--.*?-->|^\|[^\n]*$", re.MULTILINE | re.DOTALL)
# A blank line, a heading or an item of a list ends a sentence too.
PARAGRAPH = re.compile(r"\n\s*\n|\n(?=#|\s*[-*] |\s*\d+\. )")
SENTENCE = re.compile(r"(?<=[.!?:;])[\"')*]*\s+(?=[\"'(*`\[A-Z])")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """The sentences of a page, each with its first line."""
    text = NO_PROSE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    start = 0
    for end in [*(match.end() for match in PARAGRAPH.finditer(text)), len(text)]:
        place = start
        for sentence in SENTENCE.split(text[start:end]):
            place = text.index(sentence, place)
            line = text.count("\n", 0, place + len(sentence) - len(sentence.lstrip())) + 1
            yield line, " ".join(LINK.sub(r"\1", sentence).split())
            place += len(sentence)
        start = end


def main() -> None:
    arguments = sys.argv[1:]
    words_max = int(arguments.pop(0)) if arguments and arguments[0].isdigit() else WORDS_MAX
    if not arguments:
        listing = ["git", "ls-files", "--", *(f":(glob){each}" if each[0] != ":" else each for each in PAGES)]
        done = subprocess.run(listing, cwd=REPOSITORY, capture_output=True, text=True, check=True)
        arguments = done.stdout.splitlines()
    found = []
    for page in arguments:
        for line, sentence in sentences((REPOSITORY / page).read_text()):
            if (count := len(sentence.split())) > words_max:
                found.append((count, f"{page}:{line}: {count} words: {sentence[:100]}"))
    for _, text in sorted(found, key=lambda each: -each[0]):
        print(text)
    print(f"{len(found)} sentences have more than {words_max} words")


if __name__ == "__main__":
    main()
