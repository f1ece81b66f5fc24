"""Where questions come from: reasoning-gym, files of questions, packages of one's own."""
