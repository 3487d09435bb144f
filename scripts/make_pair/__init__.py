"""Makes a bundled pair of tiny models from nothing: corpus, tokenizer, target, drafter, prompts.

    python scripts/make_pair tiny-dense --work DIR [--stage STAGE]

A pair with a teacher (see ``recipe.py``) imitates a finished pair and takes minutes. Its corpus is
the teacher's: copy ``tokenizer.json`` and ``*.npy`` of one pair's ``DIR`` to save making it again.
Run without ``--stage`` it goes through all stages in order and resumes whatever ``DIR`` holds.
"""
