"""Where a range made from the library's defaults would be too wide."""

from __future__ import annotations

NOT_OPEN = frozenset({"seed", "size", "data_file"})
"""What is the draw's, and what names a file."""

ROOM = 10
"""A number may be so many times the largest default of its field and of that field's other end."""

_LARGEST: dict[str, dict[str, float]] = {
    "basic_arithmetic": {"min_digits": 10, "max_digits": 10, "min_terms": 20, "max_terms": 20},
    "bf": {"difficulty": 3},
    "boxnet": {"max_row_num": 12, "max_column_num": 12},
    "circuit_logic": {"max_inputs": 8, "max_terms": 12},
    "countdown": {"min_numbers": 8, "max_numbers": 8},
    "cryptarithm": {"max_words": 6},
    "dice": {"num_dice": 12, "max_dice_size": 40},
    "family_relationships": {"min_family_size": 16, "max_family_size": 16},
    "futoshiki": {"min_board_size": 9, "max_board_size": 9, "min_difficulty": 3},
    "game_of_life": {"grid_size_x": 50, "grid_size_y": 50},
    "game_of_life_halting": {"grid_size_x": 40, "grid_size_y": 40, "num_oscillators": 10},
    "graph_color": {"num_colors": 8, "max_num_vertices": 40, "min_num_vertices": 40},
    "intermediate_integration": {"max_linear_degree": 8, "max_poly_degree": 6},
    "jugs": {"num_jugs": 5, "difficulty": 16},
    "kakurasu": {"max_rows": 8, "max_cols": 8, "max_retries": 1000},
    "knight_swap": {"max_nodes": 12, "max_pieces": 4, "max_attempts": 200, "max_steps": 40},
    "knights_knaves": {"n_people": 6, "depth_constraint": 4, "width_constraint": 4},
    "n_queens": {"n": 10},
    "number_sequence": {"max_complexity": 4, "max_terms": 20},
    "palindrome_partitioning": {"max_string_len": 24, "min_string_len": 24},
    "polynomial_equations": {"max_degree": 6, "max_terms": 10},
    "polynomial_multiplication": {"max_degree": 10, "max_terms": 10, "max_polynomials": 6},
    "power_function": {"max_exponent": 20, "min_exponent": 20},
    "puzzle24": {"max_value": 50},
    "quantum_lock": {"difficulty": 20},
    "rubiks_cube": {"cube_size": 5, "max_scramble_steps": 40},
    "self_reference": {"difficulty": 10},
    "simple_integration": {"max_degree": 20, "max_terms": 12},
    "sokoban": {"max_w": 14, "max_h": 14, "max_boxes": 10, "max_depth": 100},
    "survo": {"min_board_size": 8, "max_board_size": 8, "min_empty": 20, "max_empty": 20},
    "tower_of_hanoi": {"min_disks": 10, "max_disks": 10, "max_pegs": 6},
    "tsumego": {"max_board_size": 19, "max_stones": 60},
    "zebra_puzzles": {"num_people": 7, "num_characteristics": 7},
}
"""What grows with a power of the number, or is searched for. Beyond, one task may take minutes."""


def largest(family: str, name: str) -> float | None:
    """The most that a number may be, where that is less than the general rule allows."""
    return _LARGEST.get(family, {}).get(name)
