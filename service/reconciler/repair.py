"""Repair: what is done about a generation that cannot go on."""

from __future__ import annotations

from scavenger.protocol import Directive
from scavenger.view import Phase
from service.db.workers import Worker
from service.reconciler.action import Action, Finish, Publish, Terminate
from service.reconciler.deadline import (
    ALL_SILENT,
    ENTRY,
    FIRST,
    breath,
    is_entry_over,
    is_fruitless,
    is_idle,
)
from service.reconciler.ending import is_done
from service.reconciler.servers import replace_servers, silent_servers
from service.reconciler.snapshot import Snapshot
from service.reconciler.succession import choose_members, follow, shrink, survivors_of


def repair(snapshot: Snapshot) -> Action | None:
    """The generation cannot go on: those who can form the next one, from the most advanced."""
    directive = snapshot.directive
    if directive is None or is_done(snapshot):
        return None
    hung = hung_members(snapshot)
    if hung:
        return Terminate(hung, f"{', '.join(hung)} silent{how_long(snapshot)}")
    stuck = silent_servers(snapshot)
    if stuck:
        return Terminate(stuck, f"{', '.join(stuck)} silent while the workers wait")
    if snapshot.lost_servers:
        return replace_servers(snapshot, directive)
    if snapshot.lost or snapshot.restarted:
        return leave_lost_behind(snapshot, directive)
    if snapshot.released:
        return let_released_go(snapshot, directive)
    if is_broken(snapshot, directive):
        return form_anew(snapshot, directive, "the workers lost touch")
    if is_entry_over(snapshot):
        return enforce_entry(snapshot, directive)
    return end_idle(snapshot, directive)


def form_anew(snapshot: Snapshot, directive: Directive, what: str) -> Action:
    """Tell the same workers again, unless that was in vain too often."""
    if is_fruitless(snapshot):
        return Finish(Phase.FAILED, f"{what}, {in_vain(snapshot, directive)}")
    why = f"{what}: forming {directive.config} anew"
    again = follow(snapshot, directive.config, directive.members, why, repairs=True)
    return Publish(again, why)


def in_vain(snapshot: Snapshot, directive: Directive) -> str:
    """Say what was tried and who did not follow."""
    told = snapshot.fruitless
    minutes = (snapshot.now - told[0]).total_seconds() / 60
    outside = [w.worker for w in members_alive(snapshot) if w.generation < directive.generation]
    missing = f", the newest not entered by {', '.join(outside)}" if outside else ""
    return (
        f"and no iteration came of {len(told)} directives within {minutes:.0f} min{missing}; "
        "read what these workers printed, and whether they can reach each other"
    )


def enforce_entry(snapshot: Snapshot, directive: Directive) -> Action:
    """Some have not entered the generation for too long: go back to those it had, or try again."""
    members = members_alive(snapshot)
    newcomers = tuple(worker.worker for worker in members if worker.generation == 0)
    if newcomers and len(newcomers) < len(members):
        return Terminate(newcomers, f"{', '.join(newcomers)} did not join in {ENTRY.span}")
    return form_anew(snapshot, directive, f"directive {directive.generation} was not entered")


def end_idle(snapshot: Snapshot, directive: Directive) -> Action | None:
    """Those who entered a generation and never finished an iteration get new machines."""
    idle = tuple(worker.worker for worker in members_alive(snapshot))
    if not (idle and snapshot.fruitless and is_idle(snapshot)):
        return None
    if is_fruitless(snapshot):
        return Finish(Phase.FAILED, f"nobody trains, {in_vain(snapshot, directive)}")
    return Terminate(idle, f"{', '.join(idle)} finished no iteration in {FIRST.span}")


def members_alive(snapshot: Snapshot) -> tuple[Worker, ...]:
    """Return the members whose machine runs, in rank order."""
    alive = {vm.id for vm in snapshot.alive}
    known = (snapshot.worker(member) for member in snapshot.members if member in alive)
    return tuple(worker for worker in known if worker is not None)


def leave_lost_behind(snapshot: Snapshot, directive: Directive) -> Action | None:
    """Members died: the survivors go on without them, and with those that are back already."""
    survivors = survivors_of(snapshot, directive)
    if not survivors:
        return None
    config = shrink(snapshot, directive.config, len(survivors))
    why = f"{news_of(snapshot)} with {config}"
    return Publish(follow(snapshot, config, survivors, why, repairs=True), why)


def news_of(snapshot: Snapshot) -> str:
    """Say what befell the members, and who goes on."""
    again = f"{', '.join(snapshot.restarted)} started again"
    if not snapshot.lost:
        return f"{again}: going on"
    lost = f"lost {', '.join(snapshot.lost)}"
    return f"{lost}; {again}: going on" if snapshot.restarted else f"{lost}: the survivors go on"


def let_released_go(snapshot: Snapshot, directive: Directive) -> Action | None:
    """Members' machines were told to end: the others go on, with whoever is ready to step in.

    Nothing is broken: the others have left them out at an iteration boundary already.
    """
    members = choose_members(snapshot, directive.config.workers)
    if not survivors_of(snapshot, directive):
        return None
    config = shrink(snapshot, directive.config, len(members))
    why = f"{', '.join(snapshot.released)} was told to leave: the others go on with {config}"
    return Publish(follow(snapshot, config, members, why), why)


def is_broken(snapshot: Snapshot, directive: Directive) -> bool:
    """Whether a member waits for a new generation, for long enough that it is no accident."""
    age = snapshot.now - (snapshot.published_at or snapshot.now)
    members = [snapshot.worker(member) for member in snapshot.members]
    waits = any(w is not None and w.broken is not None for w in members)
    return waits and age > breath(snapshot)


def hung_members(snapshot: Snapshot) -> tuple[str, ...]:
    """Members that have said nothing for long while another still speaks, or all for longer."""
    alive = [vm.id for vm in snapshot.alive if vm.id in snapshot.members]
    silent = tuple(worker for worker in alive if snapshot.is_silent(worker))
    if len(silent) < len(alive):
        return silent
    return silent if is_nobody_heard(snapshot, silent) else ()


def is_nobody_heard(snapshot: Snapshot, workers: tuple[str, ...]) -> bool:
    """Whether none of these processes has spoken for so long that none will."""
    known = [snapshot.worker(worker) for worker in workers]
    return all(
        w is not None and w.is_up and snapshot.silence(w.worker) > ALL_SILENT.after for w in known
    )


def how_long(snapshot: Snapshot) -> str:
    """Say why those who are silent are not waited for."""
    is_everybody = is_nobody_heard(snapshot, snapshot.members)
    return f" for {ALL_SILENT.after}" if is_everybody else " while the others wait"
