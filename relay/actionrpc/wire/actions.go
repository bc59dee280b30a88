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

// ActionOf returns what is known of an action, and whether there is one of that name.
func ActionOf(name string) (a Action, ok bool) {
	switch name {
	case ActionPing, ActionFileChunk, ActionInit, ActionHealth, ActionBackend, "box_shutdown", "box_verify_shared_workspace",
		"box_upsert_sandbox_admission_grant", "box_revoke_sandbox_admission_grant":
		a.Host = true
	case "box_status", "box_exec", "box_create_session", "box_get_session", "box_get_sessions", "box_delete_session",
		"box_start_managed_process", "box_get_managed_process", "box_stop_managed_process":
	case "box_list_skills", "box_get_skill", "box_delete_skill", "box_scan_skill_directory", "box_list_skill_files", "box_read_skill_file":
		a.Skill = true
	case "box_create_skill", "box_update_skill", "box_write_skill_file":
		a.Skill, a.Stores = true, true
	case "box_preview_skill_zip":
		a.Skill, a.File = true, true
	case "box_install_skill_zip":
		a = Action{Skill: true, Stores: true, File: true}
	default:
		return a, false
	}
	return a, true
}
