"""The installed SGLang: what is relied on, what is changed, what is said where it does not fit."""
