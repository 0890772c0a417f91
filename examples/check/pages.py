"""The commands of the page of a language. The run uses exactly these, so the page cannot be wrong."""

import re
import shlex
from dataclasses import dataclass

from processes import Failed
from world import ROOT

FENCE = "```"


@dataclass
class Block:
    name: str  # of a block `sh NAME`
    text: str
    prints: str | None = None  # the `text` block that follows immediately

    def command(self) -> list[str]:
        return shlex.split(self.text)

    def fits(self, printed: str) -> bool:
        """Compares the output with the page. `…` stands for any text in a line, or for any lines if it is alone."""
        if self.prints is None:
            return True
        wanted = ""
        for line in self.prints.splitlines():
            wanted += r"(.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n"
        return re.fullmatch(wanted, printed.strip() + "\n") is not None


class Page:
    def __init__(self, language: str):
        self.path = ROOT / "docs" / "languages" / f"{language}.md"
        self.blocks: list[Block] = []
        lines, follows = iter(self.path.read_text().splitlines()), False
        for line in lines:
            if not line.startswith(FENCE):
                follows = follows and not line
                continue
            inside = []
            while (text := next(lines)) != FENCE:
                inside.append(text)
            if line.startswith(FENCE + "sh "):
                self.blocks.append(Block(line.removeprefix(FENCE + "sh "), "\n".join(inside)))
            elif line == FENCE + "text" and follows:
                self.blocks[-1].prints = "\n".join(inside)
            follows = line.startswith(FENCE + "sh ")
        for name in ("pay", "refused", "arrived"):
            if not any(block.name == name for block in self.blocks):
                raise Failed(f"{self.path} has no block `sh {name}`")

    def one(self, name: str) -> Block:
        blocks = [block for block in self.blocks if block.name == name]
        if len(blocks) != 1:
            raise Failed(f"{self.path} must have one block `sh {name}`, and has {len(blocks)}")
        return blocks[0]

    def builds(self) -> list[str]:
        return [block.text for block in self.blocks if block.name == "build"]

    def variables(self) -> list[str]:
        """The environment variables that the page sets."""
        return re.findall(r"\b([A-Z_]+)=", self.one("environment").text)

    def pay(self) -> list[list[str]]:
        """The commands that pay an order, without its number."""
        return [block.command()[:-1] for block in self.blocks if block.name == "pay"]

    def consume(self) -> list[str] | None:
        return next((block.command() for block in self.blocks if block.name == "consume"), None)

    def api(self) -> list[str] | None:
        return next((block.command() for block in self.blocks if block.name == "api"), None)
