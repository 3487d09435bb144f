"""Answers and figures that leave the server, where SGLang's own would be wrong for a tree."""
