"""TextArena games (https://github.com/LeonGuertler/TextArena), random opponents."""

from __future__ import annotations

import importlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, ClassVar

import textarena
from textarena.envs.registration import ENV_REGISTRY

ALONE = frozenset(
    {
        *("2048", "Blackjack", "Crosswords", "FifteenPuzzle", "FrozenLake", "GuessTheNumber"),
        *("LightsOut", "LogicPuzzle", "Mastermind", "Minesweeper", "Secretary", "Set"),
        *("Slitherlink", "Sokoban", "Sudoku", "ThreeCardMonte"),
    }
)  # single-player games

_COLUMNS = "abcdefghij"

FROM_LIST = ("<listed>",)  # Marks games that list the valid moves.

FORMS: Mapping[str, tuple[str, ...]] = {
    "Alquerque": ("[<a-e><1-5> <a-e><1-5>]",),
    "Battleship": ("[<a-t><0-19>]",),
    "Breakthrough": tuple(
        f"[{column}{row}{_COLUMNS[at]}{row + step}]"
        for n, column in enumerate(_COLUMNS)
        for at in range(max(0, n - 1), min(len(_COLUMNS), n + 2))
        for row in range(1, 11)
        for step in (1, -1)
    ),
    "Briscola": ("[play <1-3>]",),
    "Chopsticks": ("[attack <0-1> <0-1>]", "[split <0-9> <0-9>]"),
    "ConnectFour": ("[col <0-14>]",),
    "Crusade": FROM_LIST,
    "GameOfPureStrategy": ("[A]", "[<2-10>]", "[J]", "[Q]", "[K]"),
    "GermanWhist": ("[play <1-13>]",),
    "Golf": ("[draw]", "[take]", "[swap <1-3> <1-3>]", "[discard]"),
    "HighSociety": ("[<1-11>]",),
    "IndianPoker": ("[check]", "[bet <1-9>]", "[call]", "[raise <1-9>]", "[fold]"),
    "IteratedMatchingPennies": ("[heads]", "[tails]"),
    "IteratedPrisonersDilemma": ("[Cooperate]", "[Defect]"),
    "IteratedRockPaperScissors": ("[rock]", "[paper]", "[scissors]"),
    "IteratedTwoThirdsAverage": ("[<0-100>]",),
    "IteratedUltimatumGame": ("[Offer: $<0-50>]", "[Accept]", "[Reject]"),
    "KuhnPoker": ("[check]", "[bet]", "[call]", "[fold]"),
    "LiarsDice": ("[Bid: <1-24>, <1-6>]", "[Call]"),
    "LinesOfAction": ("[<a-h><1-8><a-h><1-8>]",),
    "MemoryGame": ("[<0-7> <0-7> <0-7> <0-7>]",),
    "Nim": ("[<0-4> <1-11>]",),
    "Othello": ("[<0-13>, <0-13>]",),
    "PigDice": ("[roll]", "[hold]"),
    "Poker": ("[Check]", "[Call]", "[Fold]", "[Raise <20-100>]"),
    "QuantumTicTacToe": ("[<0-8>,<0-8>]",),
    "SimpleBlindAuction": ("[Bid on Item <0-2>: <1-300>]",),
    "SimpleTak": FROM_LIST,
    "Snake": ("[up]", "[down]", "[left]", "[right]"),
    "Surround": ("[up]", "[down]", "[left]", "[right]"),
    "TicTacToe": ("[<0-8>]",),
    "UltimateTicTacToe": ("[<0-8> <0-8>]",),
    "WildTicTacToe": FROM_LIST,
}  # two-player games: forms of moves; ``<a-e>`` is a letter, ``<1-13>`` a number

_SLOW = "a puzzle takes seconds to make"

_REASONS: Mapping[str, tuple[str, ...]] = {
    "it needs a list of words that is fetched from the network": (
        *("Codenames", "DontSayIt", "Hangman", "LetterAuction", "SpellingBee", "WordChains"),
        *("WordLadder", "WordSearch", "Wordle"),
    ),
    "a model on the network answers or judges": (
        *("Debate", "GuessWho", "ScenarioPlanning", "TwentyQuestions"),
    ),
    "it does not parse on Python 3.11": (
        *("Checkers", "Chess", "IteratedStagHunt", "Klondike", "ReverseTicTacToe"),
        "UltimateTexasHoldem",
    ),
    "the library comes without a part that it needs": (
        *("BabyAiText", "ScorableGames", "UsedCar", "UsedCarNegotiation"),
    ),
    "it is for three players or more": (
        *("CharacterConclave", "MarketEntryGame", "PublicGoodsGame", "SecretMafia"),
        *("SettlersOfCatan", "Taboo", "ThreePlayerGOPS", "ThreePlayerIPD", "ThreePlayerTicTacToe"),
    ),
    "it is the same puzzle every time": ("Countdown", "Cryptarithm", "PegJump", "TowerOfHanoi"),
    "an opponent who draws lots has nothing to say in it": (
        *("NewRecruit", "SimpleNegotiation", "TruthAndDeception", "TwoDollar"),
    ),
    "an opponent who draws lots finds hardly a move that it takes": ("ColonelBlotto",),
    "a turn of an opponent who draws lots may not end": ("SpiteAndMalice",),
    "its reward is the regret, least for the best answer": ("Bandit",),
    "it continues after a player has lost by a wrong move": ("SantoriniBaseFixed",),
    "it fails in the middle of some games": ("Stratego",),
    "it fails where a player wins": ("Tak",),
    _SLOW: ("RushHour",),
}

REFUSED: Mapping[str, str] = {name: why for why, names in _REASONS.items() for name in names}
"""Unsupported games, with reasons."""

REFUSED_VARIANTS: Mapping[str, str] = {"Sokoban-v0-medium": _SLOW, "Sudoku-v0-hard": _SLOW}

MOST_TRIES = 4096  # invalid moves after which the opponent gives up
LISTED = re.compile(r"(?:Available|Valid) moves?:(.*)", re.IGNORECASE)
BRACKETED = re.compile(r"\[[^\[\]]+\]")
SLOT, SLOTS = re.compile(r"<(\w+)-(\w+)>"), re.compile(r"(<\w+-\w+>)")
GIVEN_UP = "I give up."


class Opponent:
    """Samples among the listed moves, or moves in ``forms`` until one is valid."""

    def __init__(self, forms: Sequence[str], rng: random.Random) -> None:
        self._rng = rng
        parts = [filter(None, SLOTS.split(form)) for form in forms if form not in FROM_LIST]
        self._forms = [[_choices(part) for part in form] for form in parts]

    def move(self, game: Any) -> bool:
        """Make a move, hiding invalid attempts; return whether the game is over."""
        _, messages = game.get_observation()
        state, allowance = game.state, game.state.error_allowance
        lengths = {player: len(history) for player, history in state.observations.items()}
        state.error_allowance = MOST_TRIES + 1
        for move in self._moves(messages):
            state.error_count = 0
            over, _ = game.step(move)
            if over or not state.error_count:
                state.error_allowance = allowance
                return bool(over)
            for player, history in state.observations.items():
                del history[lengths[player] :]
        state.error_allowance = 0
        over, _ = game.step(GIVEN_UP)
        state.error_allowance = allowance
        return bool(over)

    def _moves(self, messages: Sequence[tuple[int, str, Any]]) -> Iterator[str]:
        lines = [line for _, text, _ in messages for line in LISTED.findall(text)]
        moves = [move for line in lines for move in BRACKETED.findall(line)]
        self._rng.shuffle(moves)
        yield from moves
        for _ in range(MOST_TRIES if self._forms else 0):
            yield "".join(self._rng.choice(part) for part in self._rng.choice(self._forms))


def _choices(part: str) -> list[str]:
    slot = SLOT.fullmatch(part)
    if slot is None:
        return [part]
    first, last = slot.groups()
    if first.isdecimal():
        return [str(number) for number in range(int(first), int(last) + 1)]
    return [chr(letter) for letter in range(ord(first), ord(last) + 1)]


ADAPTER = 1  # Increase it whenever the same game, seed and actions give other results.
NUMBERS = 1_000_000
MOST_TURNS = 1024  # consecutive turns of an opponent

Message = tuple[int, str, Any]


class TextArenaGame:
    """One game; the seed decides the policy's seat.

    Observations contain the game's messages, only the latest board, and the opponent's moves.
    Actions are put into brackets if the game's own wrappers do so. The reward is the game's, mapped
    to [0, 1]: from [0, 1] for one player and from [-1, 1] for two. It is 0 before the end.
    """

    version: ClassVar[str] = f"{metadata.version('textarena')}+{ADAPTER}"
    replayable: ClassVar[bool] = True

    @staticmethod
    def refusal(settings: Mapping[str, Any]) -> str | None:
        """Return why a game is not supported, if so."""
        game = settings["game"]
        name = _name(game)
        if reason := REFUSED.get(name) or REFUSED_VARIANTS.get(game):
            return f"game = {game!r} is not played: {reason}"
        if name not in ALONE | FORMS.keys() or game not in ENV_REGISTRY:
            names = ", ".join(sorted(ALONE | FORMS.keys()))
            return f"game = {game!r:.60} is not known; of version v0 there are {names}"
        if game.endswith(("-raw", "-train")):
            return f"game = {game!r}: leave out -{game.rpartition('-')[2]}"
        # Import now: the game's libraries must be loaded before an episode begins.
        importlib.import_module(ENV_REGISTRY[game].entry_point.partition(":")[0])
        return None

    def reset(self, seed: int, *, game: str) -> str:
        """Begin a game such as ``Mastermind-v0``; the opponent may move first."""
        rng = random.Random(f"textarena/{seed}")
        forms = FORMS.get(_name(game))
        players = 1 if forms is None else 2
        self._seat = rng.randrange(players)
        self._opponent = Opponent(forms or (), rng)
        self._over = False
        self._game = textarena.make(f"{game}-raw")
        self._game.reset(num_players=players, seed=seed)
        for wrapper in ENV_REGISTRY[game].default_wrappers or ():
            if issubclass(wrapper, textarena.ActionWrapper):
                self._game = wrapper(self._game)
        return f"Game {seed % NUMBERS}\n{self._observation()}"

    def step(self, action: str) -> tuple[str, bool]:
        """Make a move; a second invalid one in a row loses."""
        self._over, _ = self._game.step(action)
        return self._observation(), bool(self._over)

    def reward(self) -> float:
        rewards = self._game.state.rewards
        if not self._over or rewards is None:
            return 0.0
        value = rewards[self._seat]
        if not isinstance(value, int | float):
            return 0.0  # ThreeCardMonte puts the reason of an invalid move here
        for_two = self._game.state.num_players == 2
        return min(1.0, max(0.0, (value + 1) / 2 if for_two else float(value)))

    def _observation(self) -> str:
        """Let opponents move; return the messages since the policy's last turn."""
        state = self._game.state
        for _ in range(MOST_TURNS):
            if self._over or state.current_player_id == self._seat:
                break
            self._over = self._opponent.move(self._game)
        else:
            raise RuntimeError("the policy's turn does not come")
        if self._over:
            return ""
        _, messages = self._game.get_observation()
        return visible(messages, self._seat)


def visible(messages: Sequence[Message], seat: int) -> str:
    """Return messages as their reader sees them: the last board, no own moves."""
    kinds = textarena.ObservationType
    boards = [n for n, (_, _, kind) in enumerate(messages) if kind is kinds.GAME_BOARD]
    lines = []
    for n, (sender, text, kind) in enumerate(messages):
        if kind is kinds.PLAYER_ACTION and sender == seat:
            continue
        if kind is kinds.GAME_BOARD and n != boards[-1]:
            continue
        lines.append(text if sender == textarena.GAME_ID else f"Player {sender}: {text}")
    return "\n".join(line.strip("\n") for line in lines)


def _name(game: str) -> str:
    return game.partition("-v0")[0]
