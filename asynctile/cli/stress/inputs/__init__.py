"""Scenario `inputs`: every file that a command reads, damaged in every way that can be thought of, and the command run on it.

    scenario.py   the side of stress            attacker.py  the process that forks the cases
    prey.py       what is damaged, who reads it  bystanders.py  what nobody may touch
    damage.py     one case of damage, drawn     site.py      where it is done
    standing.py   what a refusal leaves as it was
    content.py    bytes                         document.py  JSON and headers, with their grammar kept
    impostor.py   links, pipes, devices         entries.py   names in a folder
    surroundings.py  what a process may meet: limits, a closed stdout, signals
    trial.py      one command in a fork, under limits          verdict.py  what it may come to

Covers nothing itself.
"""
