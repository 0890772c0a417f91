"""The commands of the page of a language. The run uses exactly these, so the page cannot be wrong."""

import shlex

from processes import Failed
from world import ROOT


class Page:
    def __init__(self, language: str):
        self.path = ROOT / "docs" / "languages" / f"{language}.md"
        self.blocks: dict[str, list[str]] = {}  # the `sh NAME` blocks
        lines = iter(self.path.read_text().splitlines())
        for line in lines:
            if not line.startswith("```"):
                continue
            block = []
            while (inside := next(lines)) != "```":
                block.append(inside)
            if line.startswith("```sh "):
                self.blocks.setdefault(line.removeprefix("```sh "), []).append("\n".join(block))

    def one(self, name: str) -> str:
        blocks = self.blocks.get(name, [])
        if len(blocks) != 1:
            raise Failed(f"{self.path} must have one block `sh {name}`, and has {len(blocks)}")
        return blocks[0]

    def build(self) -> str:
        return self.one("build")

    def pay(self) -> list[list[str]]:
        """The commands that pay an order, without its number."""
        commands = [shlex.split(block) for block in self.blocks.get("pay", [])]
        if not commands or any(command[-1] not in ("1", "2") for command in commands):
            raise Failed(f"{self.path} needs `sh pay` blocks with one command each, which pay order 1 or 2")
        return [command[:-1] for command in commands]

    def consume(self) -> list[str]:
        return shlex.split(self.one("consume"))

    def api(self) -> list[str] | None:
        return shlex.split(self.one("api")) if "api" in self.blocks else None
