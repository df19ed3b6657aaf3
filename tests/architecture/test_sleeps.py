"""No sleep in a test stands in for a condition: every sleep is on this list, with what it is for.

A test that waits for something uses `until` or `wait_until` of tests/support/waiting.py. `asyncio.sleep(0)`, which only lets
the other tasks run, is always allowed. Programs that tests start (in strings) are not looked at.
"""

import ast
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]
NAMES = {"sleep", "wait_for_timeout"}

# What the sleeps are for, and where: file::function, once for each sleep.
ALLOWED = {
    "the only two polling loops": """
        support/waiting.py::until
        support/waiting.py::wait_until
    """,
    "something must not happen for so long": """
        accounts/test_sessions.py::test_who_loses_nothing_goes_on
        api/test_events.py::test_that_it_was_taken_is_found_out_also_when_nobody_tells
        api/test_leases.py::test_it_is_in_use_for_as_long_as_a_command_takes
        api/test_shell.py::test_it_ends_when_it_is_no_longer_shared
        contracts/runtime_contract.py::RuntimeContract.test_a_container_that_does_not_listen_is_present_and_never_ready
        contracts/runtime_contract.py::ProgramContract.test_who_does_not_look_holds_the_writer_up
        contracts/runtime_contract.py::ProgramContract.test_a_command_waits_for_its_reader_and_nothing_is_lost
        contracts/runtime_contract.py::ProgramContract.test_much_that_is_typed_arrives_whole_and_holds_up_neither_size_nor_end
        contracts/runtime_contract.py::ProgramContract.test_much_that_is_typed_arrives_whole_and_holds_up_neither_size_nor_end
        contracts/runtime_contract.py::ProgramContract.test_a_cancelled_command_ends
        contracts/runtime_contract.py::ProgramContract.test_a_cancelled_command_ends
        contracts/runtime_contract.py::ProgramContract.test_a_cancelled_job_has_ended_with_its_whole_tree
        control/test_faults.py::test_a_vanished_volume_is_lost_data_and_never_an_empty_home
        control/test_faults.py::test_a_vanished_volume_is_not_rolled_back_to_an_older_archive
        control/test_faults.py::test_a_successor_adopts_what_was_under_way_in_a_generation_of_its_own
        control/test_faults.py::test_strangers_among_the_volumes_are_left_alone
        control/test_faults.py::test_when_too_much_disappears_at_once_nothing_is_touched
        control/test_membership.py::test_a_living_leader_is_left_alone
        control/test_sharing.py::test_what_is_under_way_stays_where_it_is_when_shards_change_hands
        control/test_sharing.py::test_one_that_was_paused_can_do_no_harm_when_it_comes_back
        control/test_sharing.py::test_a_late_start_is_refused_though_the_successor_needed_nothing_of_the_provider
        control/test_sharing.py::test_a_late_start_is_refused_though_the_successor_needed_nothing_of_the_provider
        control/test_sharing.py::test_the_latch_holds_for_what_is_being_tried_again_and_stops_its_deadline
        e2e/test_busy.py::stays
        e2e/test_idle.py::test_limits_hold_over_several_processes_when_fifty_start_at_once
        proxy/test_unreachable_bus.py::test_many_that_close_at_once_do_not_keep_the_others_from_being_renewed
        proxy/test_server.py::test_a_client_that_vanishes_while_it_is_not_read_from_is_noticed
        proxy/test_gate.py::test_a_program_is_held_until_it_is_ready
        proxy/test_gate.py::test_a_page_follows_how_it_stands
        proxy/test_route_cache.py::test_a_message_of_nobody_we_know_changes_nothing
        proxy/test_route_cache.py::test_of_what_has_no_name_here_nobody_is_told
        proxy/test_caller_cache.py::test_whom_it_is_no_longer_shared_with_is_thrown_out
        proxy/test_caller_cache.py::test_while_the_database_is_out_whoever_is_known_stays
        proxy/test_wake.py::test_a_lost_event_costs_a_second_and_no_more
        proxy/test_wake.py::test_one_that_runs_and_cannot_be_reached_yet_is_waited_for
        runtimes/test_process_termination.py::beats
        test_loops.py::test_a_loop_that_only_supervises_others_is_left_alone
        store/test_embedded.py::test_an_old_postgres_that_was_not_told_is_stopped
    """,
    "memory, bytes or processor time must stay constant for so long": """
        api/test_shell.py::test_a_slow_reader_costs_no_memory
        api/test_shell.py::test_a_slow_reader_costs_no_memory
        inside/test_terminal.py::test_a_flood_waits_for_who_does_not_read
        inside/test_terminal_browser.py::test_a_flood_is_drawn_at_the_pace_of_the_page_and_can_be_stopped
        proxy/test_server.py::test_a_last_word_to_somebody_who_has_gone_breaks_nothing
        proxy/test_server.py::test_who_does_not_read_is_not_sent_to
        proxy/test_server.py::test_who_does_not_take_a_body_is_not_sent_to
        proxy/test_server.py::test_a_tunnel_goes_at_the_pace_of_the_slower
        proxy/test_keep_alive.py::test_who_takes_no_answer_gets_no_other
        testing/test_fake_engine.py::engine_is_idle
    """,
    "a timeout has to elapse, or an outage or a load to last": """
        control/test_faults.py::test_a_provider_that_is_out_counts_against_nobody
        control/test_faults.py::test_a_runtime_that_is_out_pauses_deadlines_and_loses_nothing
        control/test_membership.py::test_who_has_just_taken_the_lock_is_given_time_for_its_term
        control/test_outage.py::test_ten_minutes_without_a_provider_leave_nobody_in_error
        control/test_idle_watch.py::test_reaching_running_and_wishing_it_start_the_idle_timer
        control/test_cut_connections.py::test_every_duty_turns_again_after_postgresql_is_stopped_and_continued
        e2e/faults.py::_later
        e2e/faults.py::_stopped
        e2e/test_cluster.py::the_leader_is_killed
        e2e/test_cluster.py::services_are_restarted
        e2e/test_cluster.py::services_are_restarted
        e2e/test_cluster.py::services_are_restarted
        e2e/test_cluster.py::services_are_restarted
        e2e/test_cluster.py::the_leader_hangs
        e2e/test_cluster.py::the_leader_hangs
        inside/test_terminal.py::test_a_broken_connection_goes_on_where_it_broke
        proxy/test_keep_alive.py::test_the_time_for_a_head_begins_with_it
        proxy/test_keep_alive.py::test_the_time_for_a_head_begins_with_it
    """,
    "a slow server, client or network is simulated": """
        archives/test_unresponsive_store.py::test_others_go_on_while_a_store_is_silent
        control/test_cut_connections.py::InTransaction.do
        control/test_faults.py::test_who_waits_for_a_slot_loses_no_time_of_its_deadline.take_your_time
        control/test_faults.py::test_an_effect_that_ends_while_the_world_is_looked_at_is_not_begun_again.fail
        control/test_idle_watch.py::test_a_knock_that_races_with_sleep_wins.asked
        proxy/test_drain.py::test_a_request_under_way_is_answered_and_nothing_new_begins.slow
        proxy/test_drain.py::test_a_websocket_whose_client_has_closed_its_half_is_no_obstacle.silent
        proxy/test_server.py::test_an_answer_that_has_begun_may_take_its_time.pauses
        proxy/test_server.py::test_a_client_that_closed_its_half_still_gets_the_answer.later
        proxy/test_server.py::test_an_answer_that_breaks_off_does_not_look_whole.breaks
        proxy/test_server.py::test_a_tunnel_of_which_one_half_is_closed_is_not_kept_for_ever.silent
        proxy/test_keep_alive.py::test_requests_sent_at_once_are_answered_in_order.sometimes_slow
        proxy/test_upstream_pool.py::test_what_is_said_though_nobody_asked_goes_to_nobody.talks_on
        proxy/test_upstream_pool.py::test_they_are_kept_for_a_while_and_not_too_many.counted
        runtimes/test_program_connections.py::test_a_port_is_named_by_a_line_however_it_comes.said
        sort/data/test_thread_pool.py::test_who_is_interrupted_does_not_leave_the_others_at_work.work
        store/test_events.py::test_a_reader_never_misses_one_while_many_write.write
        test_loops.py::test_a_long_turn_that_makes_progress_is_left_alone.turn
        test_loops.py::test_a_watchdog_that_wakes_late_once_blames_no_loop
        support/unreliable_socket.py::UnreliableSocket.pump
    """,
    "a client acts or a test looks again and again, at this pace": """
        api/test_bodies.py::test_sixteen_megabytes_to_sign_in_hold_nothing_up.longest_pause_s
        api/test_events.py::test_who_may_not_any_more_is_not_told_any_more.busy
        bus/test_hints.py::test_waking_neither_waits_nor_fails_while_the_bus_is_down
        control/test_idle_watch.py::test_a_live_connection_is_never_put_to_sleep_and_a_dead_one_runs_out
        e2e/effects.py::Effects._keeps_awake
        support/relayed_nodes.py::RelayedNodes._supervise
        e2e/test_idle.py::work
        e2e/test_idle.py::test_a_live_connection_keeps_awake_and_that_of_a_killed_proxy_does_not
        e2e/test_idle.py::test_a_live_connection_keeps_awake_and_that_of_a_killed_proxy_does_not
        e2e/test_idle.py::test_limits_hold_over_several_processes_when_fifty_start_at_once.watch
        e2e/test_websockets.py::echoes_on
        e2e/test_websockets.py::test_pings_and_reconnects_are_nobody_and_typing_is_somebody.type_on
        e2e/test_websockets.py::test_pings_and_reconnects_are_nobody_and_typing_is_somebody.ping_on
        e2e/test_websockets.py::test_pings_and_reconnects_are_nobody_and_typing_is_somebody
        e2e/turns.py::Watch._follow_rows
        e2e/turns.py::Watch._follow_archives
        e2e/turns.py::Watch._follow_leases
        e2e/turns.py::Watch._be_busy
        e2e/turns.py::_for_ever
        proxy/test_unreachable_bus.py::again_and_again
        proxy/test_use_leases.py::while_doing
        proxy/test_use_leases.py::test_a_websocket_has_a_lease_from_its_beginning_to_its_end
        proxy/test_use_leases.py::test_a_stream_of_events_is_no_use_but_a_download_is.pour
        runtimes/test_confinement.py::test_a_fork_bomb_is_bounded_and_ends_on_request
    """,
    "a kill, a cancellation or a change comes at various moments": """
        api/test_events.py::test_who_comes_again_and_again_misses_nothing.follow
        bus/test_redis.py::test_whoever_is_cancelled_leaves_no_answer_to_somebody_else
        bus/test_redis.py::test_a_cancellation_is_never_swallowed
        control/test_gc.py::test_undeletes_at_once_with_collections_leave_nobody_without_his_archive.undelete
        control/test_deletions.py::test_forty_deletions_at_random_moments_all_end.live_and_die
        e2e/faults.py::Faults.restart_postgres
        e2e/faults.py::Faults.restart_valkey
        e2e/test_chaos.py::test_every_home_survives
        e2e/test_chaos.py::throw_wishes
        e2e/test_loops.py::Installation.endure
        proxy/test_server.py::test_clients_that_vanish_at_any_point_harm_nobody
        proxy/test_gate.py::test_a_client_that_hangs_up_leaves_the_wake_to_the_others
        runtimes/test_process_termination.py::test_a_cancelled_start_leaves_nothing
        sort/chaos/test_random_kills.py::survive
        store/test_embedded.py::test_kill_9_during_the_first_start_leaves_nothing_half_made
        store/test_embedded.py::test_stop_may_be_repeated_and_a_cancelled_start_leaves_nothing
    """,
}


def is_only_a_yield(call: ast.Call) -> bool:
    match call:
        case ast.Call(func=ast.Attribute(attr="sleep"), args=[ast.Constant(value=0)]):
            return True
    return False


class Sleeps(ast.NodeVisitor):
    """The functions that sleep, once for each sleep."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.found: list[str] = []

    def visit_in(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.inside.append(node.name)
        self.generic_visit(node)
        self.inside.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_in  # noqa: N815 - names of ast

    def visit_Call(self, node: ast.Call) -> None:
        if not is_only_a_yield(node):
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.note(node.attr)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.note(node.id)

    def note(self, name: str) -> None:
        if name in NAMES:
            self.found.append(".".join(self.inside) or "the module")


def sleeps_in(source: str) -> list[str]:
    visitor = Sleeps()
    visitor.visit(ast.parse(source))
    return visitor.found


def test_every_sleep_is_on_the_list() -> None:
    allowed = Counter(place for places in ALLOWED.values() for place in places.split())
    found = Counter(
        f"{path.relative_to(TESTS)}::{function}"
        for path in sorted(TESTS.rglob("*.py"))
        for function in sleeps_in(path.read_text(encoding="utf-8"))
    )
    hint = "wait for the condition with tests/support/waiting.py; if the test is about passing time, add it to ALLOWED"
    assert sorted((found - allowed).elements()) == [], hint
    assert sorted((allowed - found).elements()) == [], "these sleeps are gone; remove them from ALLOWED"


def test_the_check_sees_every_kind_of_sleep() -> None:
    assert sleeps_in("import time\ndef f():\n    time.sleep(1)") == ["f"]
    assert sleeps_in("class C:\n    async def f(self):\n        await asyncio.sleep(0.1); await anyio.sleep(1)") == [
        "C.f",
        "C.f",
    ]
    assert sleeps_in("from time import sleep\ndef f():\n    pause = sleep\n    await page.wait_for_timeout(3)") == ["f", "f"]
    assert sleeps_in("async def f():\n    await asyncio.sleep(0)") == []
