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
    "a signal to this process takes a moment": """
        support/fault_points.py::FaultPoints.step
    """,
    "something must not happen for so long": """
        accounts/test_sessions.py::test_a_change_without_lost_rights_ends_no_connection
        api/test_events.py::test_lost_access_is_found_without_an_event
        api/test_leases.py::test_a_workspace_is_in_use_while_a_command_runs
        api/test_shell.py::test_a_shell_ends_when_a_recheck_finds_no_access
        contracts/runtime_contract.py::RuntimeContract.test_a_container_that_does_not_listen_is_present_and_never_ready
        contracts/runtime_contract.py::ProgramContract.test_unread_output_blocks_the_writer
        contracts/runtime_contract.py::ProgramContract.test_a_command_waits_for_its_reader_and_no_output_is_lost
        contracts/runtime_contract.py::ProgramContract.test_large_input_arrives_completely_and_delays_neither_resize_nor_close
        contracts/runtime_contract.py::ProgramContract.test_large_input_arrives_completely_and_delays_neither_resize_nor_close
        contracts/runtime_contract.py::ProgramContract.test_a_cancelled_command_ends
        contracts/runtime_contract.py::ProgramContract.test_a_cancelled_command_ends
        contracts/runtime_contract.py::ProgramContract.test_a_cancelled_job_ends_with_all_its_processes
        control/test_faults.py::test_a_missing_volume_is_data_lost_and_never_an_empty_home
        control/test_faults.py::test_a_missing_volume_is_not_replaced_by_an_older_archive
        control/test_faults.py::test_a_successor_continues_a_restore_in_a_new_generation
        control/test_faults.py::test_unknown_volumes_are_not_touched
        control/test_faults.py::test_many_missing_homes_set_the_latch_and_nothing_is_changed
        control/test_membership.py::test_a_live_leader_is_not_replaced
        control/test_sharing.py::test_an_operation_stays_with_its_controller_when_shards_move
        control/test_sharing.py::test_a_paused_controller_does_no_harm_when_it_continues
        control/test_sharing.py::test_a_late_start_is_refused_even_if_the_successor_made_no_call
        control/test_sharing.py::test_a_late_start_is_refused_even_if_the_successor_made_no_call
        control/test_sharing.py::test_the_latch_pauses_retries_and_their_deadlines
        e2e/test_busy.py::stays
        e2e/test_idle.py::test_limits_hold_over_several_processes_when_fifty_start_at_once
        proxy/test_unreachable_bus.py::test_many_closes_at_once_do_not_delay_the_renewal_of_leases
        proxy/test_server.py::test_a_disconnect_is_noticed_while_the_client_is_not_read
        proxy/test_gate.py::test_a_request_of_a_program_waits_until_the_workspace_is_ready
        proxy/test_gate.py::test_a_page_can_follow_the_status
        proxy/test_route_cache.py::test_invalid_and_foreign_messages_are_ignored
        proxy/test_route_cache.py::test_a_dropped_route_cuts_no_connection
        proxy/test_caller_cache.py::test_removing_a_share_cuts_the_connections_of_that_user
        proxy/test_caller_cache.py::test_known_callers_stay_while_the_database_is_unreachable
        proxy/test_wake.py::test_a_lost_event_delays_a_wake_by_one_check
        proxy/test_wake.py::test_a_running_workspace_that_is_not_reachable_yet_is_waited_for
        runtimes/test_process_termination.py::beats
        test_loops.py::test_a_loop_that_only_supervises_others_is_not_restarted
        store/test_embedded.py::test_an_old_postgres_that_still_runs_is_stopped
    """,
    "memory, bytes or processor time must stay constant for so long": """
        api/test_shell.py::test_a_slow_reader_uses_bounded_memory
        api/test_shell.py::test_a_slow_reader_uses_bounded_memory
        inside/test_terminal.py::test_unread_output_uses_bounded_memory
        inside/test_terminal_browser.py::test_much_output_is_drawn_at_the_pace_of_the_page_and_can_be_stopped
        proxy/test_server.py::test_a_reply_to_a_disconnected_client_causes_no_error
        proxy/test_server.py::test_a_slow_client_blocks_the_response_of_the_server
        proxy/test_server.py::test_a_server_that_does_not_read_blocks_the_body_of_the_client
        proxy/test_server.py::test_a_tunnel_runs_at_the_speed_of_the_slower_side
        proxy/test_keep_alive.py::test_a_client_that_never_reads_uses_bounded_memory
        testing/test_fake_engine.py::engine_is_idle
    """,
    "a timeout has to elapse, or an outage or a load to last": """
        control/test_faults.py::test_an_outage_of_the_provider_counts_as_no_failure
        control/test_faults.py::test_an_outage_of_the_runtime_pauses_deadlines_and_loses_nothing
        control/test_membership.py::test_a_new_holder_of_the_lock_has_time_to_begin_its_term
        control/test_outage.py::test_ten_minutes_without_a_provider_cause_no_error
        control/test_idle_watch.py::test_reaching_running_and_requesting_it_start_the_idle_timer
        control/test_cut_connections.py::test_every_duty_runs_again_after_postgresql_is_stopped_and_continued
        e2e/faults.py::_later
        e2e/faults.py::_stopped
        e2e/test_cluster.py::the_leader_is_killed
        e2e/test_cluster.py::services_are_restarted
        e2e/test_cluster.py::services_are_restarted
        e2e/test_cluster.py::services_are_restarted
        e2e/test_cluster.py::services_are_restarted
        e2e/test_cluster.py::the_leader_hangs
        e2e/test_cluster.py::the_leader_hangs
        inside/test_terminal.py::test_a_reconnect_continues_where_the_connection_broke
        proxy/test_keep_alive.py::test_the_timeout_of_a_head_starts_with_its_first_byte
        proxy/test_keep_alive.py::test_the_timeout_of_a_head_starts_with_its_first_byte
    """,
    "a slow server, client or network is simulated": """
        archives/test_unresponsive_store.py::test_other_threads_work_while_a_store_does_not_answer
        control/test_cut_connections.py::InTransaction.do
        control/test_faults.py::test_waiting_for_a_slot_does_not_count_towards_the_deadline.take_your_time
        control/test_faults.py::test_an_effect_that_ends_during_the_observation_is_not_started_again.fail
        control/test_idle_watch.py::test_a_wake_wins_against_a_concurrent_automatic_stop.asked
        proxy/test_drain.py::test_a_request_in_progress_is_answered_and_new_ones_are_not_accepted.slow
        proxy/test_drain.py::test_a_half_closed_websocket_does_not_delay_the_drain.silent
        proxy/test_server.py::test_a_response_that_has_begun_has_no_timeout.pauses
        proxy/test_server.py::test_a_half_closed_client_gets_the_response.later
        proxy/test_server.py::test_an_interrupted_response_is_reset.breaks
        proxy/test_server.py::test_a_half_closed_tunnel_has_a_timeout.silent
        proxy/test_keep_alive.py::test_pipelined_requests_are_answered_in_order.sometimes_slow
        proxy/test_upstream_pool.py::test_an_unrequested_response_is_dropped.talks_on
        proxy/test_upstream_pool.py::test_kept_connections_are_limited_in_number_and_time.counted
        runtimes/test_program_connections.py::test_the_line_with_the_port_may_arrive_in_pieces.said
        sort/data/test_thread_pool.py::test_an_interrupt_waits_for_the_other_threads.work
        store/test_events.py::test_a_reader_never_misses_one_while_many_write.write
        test_loops.py::test_a_long_turn_that_makes_progress_is_not_restarted.turn
        test_loops.py::test_a_watchdog_that_wakes_late_once_blames_no_loop
        support/unreliable_socket.py::UnreliableSocket.pump
    """,
    "a client acts or a test looks again and again, at this pace": """
        runtimes/docker/test_serve.py::Visitor.run
        api/test_bodies.py::test_a_sign_in_body_of_sixteen_megabytes_does_not_block_the_loop.longest_pause_s
        api/test_events.py::test_a_stream_ends_when_its_user_loses_access.busy
        bus/test_hints.py::test_a_hint_neither_waits_nor_fails_while_the_bus_is_down
        control/test_idle_watch.py::test_a_live_connection_prevents_the_stop_and_a_dead_one_expires
        e2e/effects.py::Effects._keeps_awake
        support/relayed_nodes.py::RelayedNodes._supervise
        e2e/test_idle.py::work
        e2e/test_idle.py::test_a_live_connection_prevents_the_stop_and_that_of_a_killed_proxy_does_not
        e2e/test_idle.py::test_a_live_connection_prevents_the_stop_and_that_of_a_killed_proxy_does_not
        e2e/test_idle.py::test_limits_hold_over_several_processes_when_fifty_start_at_once.watch
        e2e/test_websockets.py::echoes_on
        e2e/test_websockets.py::test_pings_and_reconnects_are_not_use_and_typing_is.type_on
        e2e/test_websockets.py::test_pings_and_reconnects_are_not_use_and_typing_is.ping_on
        e2e/test_websockets.py::test_pings_and_reconnects_are_not_use_and_typing_is
        e2e/turns.py::Watch._follow_rows
        e2e/turns.py::Watch._follow_archives
        e2e/turns.py::Watch._follow_leases
        e2e/turns.py::Watch._be_busy
        e2e/turns.py::_for_ever
        proxy/test_unreachable_bus.py::again_and_again
        proxy/test_use_leases.py::while_doing
        proxy/test_use_leases.py::test_a_websocket_has_a_lease_from_its_beginning_to_its_end
        proxy/test_use_leases.py::test_an_event_stream_is_not_use_but_a_download_is.pour
        runtimes/test_confinement.py::test_a_fork_bomb_is_limited_and_can_be_stopped
    """,
    "a kill, a cancellation or a change comes at various moments": """
        api/test_events.py::test_a_client_that_reconnects_often_misses_nothing.follow
        bus/test_redis.py::test_a_cancelled_call_leaves_no_reply_for_the_next
        bus/test_redis.py::test_a_cancellation_is_never_swallowed
        control/test_gc.py::test_concurrent_undeletes_and_collections_lose_no_archive_in_use.undelete
        control/test_deletions.py::test_forty_deletions_at_random_moments_all_end.live_and_die
        e2e/faults.py::Faults.restart_postgres
        e2e/faults.py::Faults.restart_valkey
        e2e/test_chaos.py::test_every_home_survives
        e2e/test_chaos.py::throw_wishes
        e2e/test_loops.py::Installation.endure
        proxy/test_server.py::test_disconnects_at_any_point_do_no_harm
        proxy/test_gate.py::test_a_disconnected_client_does_not_cancel_the_wake_for_others
        runtimes/test_process_termination.py::test_a_cancelled_start_leaves_no_container
        sort/chaos/test_random_kills.py::survive
        store/test_embedded.py::test_kill_9_during_the_first_start_leaves_no_incomplete_cluster
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
