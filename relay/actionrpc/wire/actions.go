// SPDX-License-Identifier: Apache-2.0

package wire

// Action is what is known of an action of the protocol without performing it.
type Action struct {
	Host   bool // is about LangBot itself, not about a Workspace
	Skill  bool // is about data that a Workspace has across all its generations
	Stores bool // adds to that data
	File   bool // uses an uploaded file
}

// Names of actions that a gateway answers itself, or for which it asks more than one node.
const (
	ActionPing      = "__ping"
	ActionFileChunk = "__file_chunk"
	ActionInit      = "box_init"
	ActionHealth    = "box_health"
	ActionBackend   = "box_get_backend_info"
)

// Actions are all actions.
var Actions = map[string]Action{
	ActionPing: {Host: true}, ActionFileChunk: {Host: true}, ActionInit: {Host: true}, ActionHealth: {Host: true}, ActionBackend: {Host: true},
	"box_shutdown": {Host: true}, "box_verify_shared_workspace": {Host: true},
	"box_upsert_sandbox_admission_grant": {Host: true}, "box_revoke_sandbox_admission_grant": {Host: true},
	"box_status": {}, "box_exec": {}, "box_create_session": {}, "box_get_session": {}, "box_get_sessions": {}, "box_delete_session": {},
	"box_start_managed_process": {}, "box_get_managed_process": {}, "box_stop_managed_process": {},
	"box_list_skills": {Skill: true}, "box_get_skill": {Skill: true}, "box_create_skill": {Skill: true, Stores: true}, "box_update_skill": {Skill: true, Stores: true},
	"box_delete_skill": {Skill: true}, "box_scan_skill_directory": {Skill: true}, "box_list_skill_files": {Skill: true},
	"box_read_skill_file": {Skill: true}, "box_write_skill_file": {Skill: true, Stores: true},
	"box_preview_skill_zip": {Skill: true, File: true}, "box_install_skill_zip": {Skill: true, Stores: true, File: true},
}
