// The types of the API's JSON.

export type Wish = "RUNNING" | "STANDBY" | "ARCHIVED" | "DELETED";
export type Phase = "PENDING" | "ARCHIVED" | "STANDBY" | "RUNNING" | "ERROR" | "DELETING" | "DELETED";
export type OperationKind =
  "PROVISIONING" | "RESTORING" | "ACCEPTING" | "STARTING" | "STOPPING" | "ARCHIVING" | "COPYING" | "CREATE_EMPTY_ARCHIVE" | "DELETING";
export type Outcome = "DONE" | "FAILED" | "TURNED" | "ABANDONED";
export type Role = "use" | "manage";
export type Scope = "read" | "use" | "manage" | "account" | "admin";

/** An instant, as ISO 8601. */
export type Instant = string;

export interface Condition {
  status: "True" | "False";
  reason: string;
  message: string;
  last_transition_time: Instant | null;
}

export interface ErrorInfo {
  reason: string;
  message: string;
  is_terminal: boolean;
  operation: string;
  error_count: number;
  context: Record<string, unknown>;
  occurred_at: Instant;
}

export interface Workspace {
  id: string;
  name: string;
  owner: string;
  template: string;
  /** null: the template's image, or the runtime's default. */
  image: string | null;
  command: string[];
  desired_state: Wish;
  phase: Phase;
  previous_phase: Phase | null;
  operation: OperationKind | "NONE";
  progress: number | null;
  progress_detail: { bytes: number; bytes_total: number | null; files: number; files_total: number | null } | null;
  generation: number;
  revision: number;
  conditions: Record<string, Condition>;
  observed_status: string;
  health_status: "OK" | "ERROR";
  error: ErrorInfo | null;
  archive_key: string | null;
  /** The older archive that is to replace the home. */
  restore: { archive_key: string; asked_at: Instant } | null;
  /** The disk use of the home; null when it is not measured yet. */
  disk_bytes: number | null;
  disk_measured_at: Instant | null;
  standby_ttl: number;
  archive_ttl: number;
  last_access_at: Instant;
  /** When it goes to sleep unless it is used; null when that is not soon. */
  sleeps_at: Instant | null;
  phase_changed_at: Instant;
  observed_at: Instant | null;
  created_at: Instant;
  deleted_at: Instant | null;
  purge: boolean;
  url: string;
  shares: Record<string, Role>;
}

export interface Page<Item> {
  items: Item[];
  next_cursor: string | null;
}

export interface ChangeEvent {
  id: number;
  event: "state_changed" | "error" | "sleeping_soon" | "heartbeat" | "reset";
  at: Instant | null;
  workspace: Workspace | null;
}

export interface Operation {
  op_id: string;
  kind: OperationKind;
  attempt: number;
  generation: number;
  started_at: Instant;
  ended_at: Instant | null;
  seconds: number | null;
  outcome: Outcome | null;
  reason: string | null;
  message: string;
  done_bytes: number;
}

export interface Archive {
  key: string;
  generation: number;
  revision: number;
  size_bytes: number;
  home_bytes: number;
  new_bytes: number;
  /** The home had this state then. */
  made_at: Instant;
  proven_at: Instant;
  is_current: boolean;
  is_damaged: boolean;
}

export interface ArchiveList {
  items: Archive[];
  /** The home on disk may have changes that no archive has. */
  has_changes: boolean;
}

export interface Explanation {
  summary: string;
  lines: string[];
  next: string | null;
  why: string | null;
  ways_out: { command: string; means: string }[];
  awake_because: StayAwake[];
}

/** Why a workspace does not stop or archive by itself yet. */
export interface StayAwake {
  why: string;
  words: string;
  until: Instant | null;
}

export interface Usage {
  points: { at: Instant; cpu_cores: number; memory_bytes: number }[];
  disk: { at: Instant; disk_bytes: number }[];
}

export interface Lease {
  id: string;
  reason: string;
  created_by: string;
  created_at: Instant;
  expires_at: Instant;
}

export interface Template {
  name: string;
  title: string;
  description: string;
  takes_command: boolean;
  needs_command: boolean;
  takes_image: boolean;
  cpu_weight: number;
  warnings: string[];
}

export interface Limits {
  max_running_per_user: number;
  default_max_running_per_user: number;
  max_running_global: number;
  running_mine: number;
  running: string[];
}

export interface Me {
  id: string;
  username: string;
  is_admin: boolean;
  max_running: number | null;
  has_password: boolean;
}

export interface Session {
  id: string;
  created_at: Instant;
  expires_at: Instant;
  last_used_at: Instant | null;
  came_from: string;
  user_agent: string;
  is_current: boolean;
}

export interface Token {
  id: string;
  label: string;
  scopes: Scope[];
  created_at: Instant;
  expires_at: Instant | null;
  last_used_at: Instant | null;
}

export interface User {
  id: string;
  username: string;
  is_admin: boolean;
  is_active: boolean;
  max_running: number | null;
  has_password: boolean;
  is_from_provider: boolean;
  created_at: Instant;
}

export interface AuditEntry {
  id: number;
  at: Instant;
  username: string;
  how: "SESSION" | "TOKEN" | "DOOR" | "NOBODY" | "SYSTEM";
  token_label: string;
  came_from: string;
  action: string;
  workspace: string;
  outcome: string;
  detail: Record<string, unknown>;
}

export interface SignInWays {
  password: boolean;
  oidc: { name: string } | null;
}

export interface Member {
  node_id: string;
  epoch: number;
  is_leader: boolean;
  started_at: Instant;
  expires_at: Instant;
}

export interface Confinement {
  node_id: string;
  missing: { what: string; why: string; remedy: string }[];
  is_accepted: boolean;
  summary: string;
}

export interface RuntimeState {
  world: string | null;
  switch: {
    target: string;
    began_at: string;
    homes_left: number;
    stuck_count: number;
    stuck: { workspace: string; owner: string; message: string }[];
  } | null;
}

export interface Readiness {
  ready: boolean;
  database: boolean;
  bus: boolean;
  archive_store: boolean;
  runtime: boolean;
  leader: string | null;
  held_back: string[];
  stalled_loops: string[];
  last_look_age_seconds?: number | null;
}

export interface Latch {
  provider: string;
  since: Instant;
  expected: number;
  missing: number;
  released_at: Instant | null;
}

export interface CollectionItem {
  key: string;
  workspace: string;
  size_bytes: number | null;
  why: string;
  means: string;
  action: string;
  orphan_since: Instant | null;
  goes_at: Instant | null;
}

export interface CollectionReport {
  started_at: Instant;
  ended_at: Instant;
  skipped: string | null;
  removed: number;
  freed_bytes: number;
}

export interface CollectionPreview {
  would_skip: string | null;
  kept: Record<string, number>;
  would_mark: number;
  waiting: number;
  would_remove: number;
  would_free_bytes: number;
  items: CollectionItem[];
  left_out: number;
  unknown_count: number;
  left_over_count: number;
  missing_count: number;
  packs: { would_free_bytes: number; missing_count: number };
  last: { requested_at: Instant | null; ran_at: Instant | null; report: CollectionReport | null };
}
