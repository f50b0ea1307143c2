"""Scenario `inputs`: every file that a command reads is damaged in many ways, and the command run on it.

    attacker.py   the process that forks the cases   bystanders.py  what no command may touch
    prey.py       the files and their readers
    damage.py     one case of damage, drawn     site.py      where it is done
    standing.py   what a refusal must leave as it was
    content.py    bytes                         document.py  JSON and headers, still well-formed
    impostor.py   links, pipes, devices         entries.py   names in a folder
    surroundings.py  conditions of a process: limits, a closed stdout, signals
    trial.py      one command in a fork, under limits          verdict.py  which outcomes are right

Covers nothing itself.
"""
