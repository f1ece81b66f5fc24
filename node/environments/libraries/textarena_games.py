"""The games of TextArena 0.7.4, by name: what each needs of an opponent, and which are refused.

A name is the library's id up to ``-v0``; what follows there is a variant of the same game.
"""

from __future__ import annotations

from collections.abc import Mapping

ALONE = frozenset(
    {
        "2048",
        "Blackjack",
        "Crosswords",
        "FifteenPuzzle",
        "FrozenLake",
        "GuessTheNumber",
        "LightsOut",
        "LogicPuzzle",
        "Mastermind",
        "Minesweeper",
        "Secretary",
        "Set",
        "Slitherlink",
        "Sokoban",
        "Sudoku",
        "ThreeCardMonte",
    }
)
"""Of one player."""

_COLUMNS = "abcdefghij"

TOLD = ("<told>",)
"""Moves of a game that lists them."""

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
    "Crusade": TOLD,
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
    "SimpleTak": TOLD,
    "Snake": ("[up]", "[down]", "[left]", "[right]"),
    "Surround": ("[up]", "[down]", "[left]", "[right]"),
    "TicTacToe": ("[<0-8>]",),
    "UltimateTicTacToe": ("[<0-8> <0-8>]",),
    "WildTicTacToe": TOLD,
}
"""Of two players, how the opponent's moves may look: ``<a-e>`` is a letter, ``<1-13>`` a number."""

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
    "it goes on where a player has lost by a wrong move": ("SantoriniBaseFixed",),
    "it fails in the middle of some games": ("Stratego",),
    "it fails where a player wins": ("Tak",),
    _SLOW: ("RushHour",),
}

REFUSED: Mapping[str, str] = {name: why for why, names in _REASONS.items() for name in names}
"""Others, and why."""

REFUSED_VARIANTS: Mapping[str, str] = {"Sokoban-v0-medium": _SLOW, "Sudoku-v0-hard": _SLOW}
"""Of games that are played otherwise."""
