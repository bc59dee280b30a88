// SPDX-License-Identifier: Apache-2.0

package events

// Type is what has happened. The set is closed: a client may know them all.
type Type string

// The types.
const (
	SessionStarted   Type = "session.started"
	SessionFailed    Type = "session.failed" // it could not start
	SessionEnded     Type = "session.ended"  // the reason says why
	SessionFrozen    Type = "session.frozen"
	SessionThawed    Type = "session.thawed"
	SessionStopped   Type = "session.stopped" // it has no box, and keeps what it has on disk
	SessionChanged   Type = "session.changed" // its limits or labels
	SessionAdopted   Type = "session.adopted" // by this boxd, from the one before
	SessionUnhealthy Type = "session.unhealthy"
	ExecStarted      Type = "exec.started"
	ExecEnded        Type = "exec.ended" // the reason is its status
	ProcessStarted   Type = "process.started"
	ProcessReady     Type = "process.ready"
	ProcessRestarted Type = "process.restarted"
	ProcessEnded     Type = "process.ended" // the reason is its status
	Denied           Type = "denied"        // a layer has refused something; the reason names it
	OOM              Type = "oom"           // memory was used up and the kernel has killed
	Quota            Type = "quota"         // a quota was hit; the reason names it
	ConfigReloaded   Type = "config.reloaded"
	ConfigRefused    Type = "config.refused" // the one before stays in force
	DaemonStarted    Type = "daemon.started"
	DaemonStopping   Type = "daemon.stopping"
	AuditFailed      Type = "audit.failed"    // a record could not be written
	AuditRecovered   Type = "audit.recovered" // they are written again
	GrantChanged     Type = "grant.changed"   // somebody may do more for a time, or no longer
)

// class is what is fixed of a type: the MESSAGE_ID of its lines in the journal, which
// systemd/catalog/boxd.catalog explains, and the words of the line.
type class struct{ id, text string }

func classes() map[Type]class {
	return map[Type]class{
		SessionStarted:   {"0e953970fc8941e2b4a0bc1367f7c899", "session started"},
		SessionFailed:    {"6ecea3e8a65748e9a28e23eb63c2965f", "session start failed"},
		SessionEnded:     {"a08dbcc92a444c358517c6ac3e07988f", "session ended"},
		SessionFrozen:    {"aa7dacdae4b74867a9c7183e3b040bdd", "session frozen"},
		SessionThawed:    {"aa57eb8ad1114fba8ae89660214e62c8", "session thawed"},
		SessionStopped:   {"f15a63e702fa499e943b7e42d87016af", "session stopped"},
		SessionChanged:   {"6147322f6a154a69a1d84fb24d47bc7c", "session changed"},
		SessionAdopted:   {"5bdf9c356b7a47fd9c3bd2f05f8c60e7", "session taken over"},
		SessionUnhealthy: {"50c7321240d144c4b2daacd2d1bb4ff8", "session does not answer"},
		ExecStarted:      {"0340e0ba0ab040d9ba7af25d4d51a607", "execution started"},
		ExecEnded:        {"8a44e4c349754a7980580577fd4cc6de", "execution ended"},
		ProcessStarted:   {"2b3ce3ef63734085ba67cfe8af490506", "process started"},
		ProcessReady:     {"b790b1260be64629971bbedcfccc81b3", "process ready"},
		ProcessRestarted: {"db7cf0e695ad490497180916ec5de6ef", "process started again"},
		ProcessEnded:     {"6850915766e348fd9337992b9d00493a", "process ended"},
		Denied:           {"03faab4132154371b74dc3e21d608bab", "request denied"},
		OOM:              {"dd784f4935b746f998f2c51687a1bd05", "memory used up"},
		Quota:            {"2d5c47c0f80142bd87d5f88c1518d3c7", "quota hit"},
		ConfigReloaded:   {"32f25902c0714b99b634c366d081bc4b", "configuration read again, for new sessions"},
		ConfigRefused:    {"939f8ac8bbb14810a0774f55b92e5e78", "the configuration is not in order; the one before stays in force"},
		DaemonStarted:    {"9c2523969e1547a88227471c7d37105b", "boxd serves"},
		DaemonStopping:   {"f0d1700546f743eaa45228ac637f817a", "boxd stops"},
		AuditFailed:      {"4630a94acdad4e42afe800be7ad6e351", "audit record not written"},
		AuditRecovered:   {"fc5944233f194dd6b3724d26c2cec7a4", "audit records are written again"},
		GrantChanged:     {"3570b1eb601b4bba9e6ac153f2ddd9fa", "grant changed"},
	}
}

// Types lists all of them.
func Types() []Type {
	return []Type{
		SessionStarted, SessionFailed, SessionEnded, SessionFrozen, SessionThawed, SessionStopped, SessionChanged, SessionAdopted, SessionUnhealthy,
		ExecStarted, ExecEnded, ProcessStarted, ProcessReady, ProcessRestarted, ProcessEnded, Denied, OOM, Quota,
		ConfigReloaded, ConfigRefused, DaemonStarted, DaemonStopping, AuditFailed, AuditRecovered, GrantChanged,
	}
}

// Valid reports whether t is one of them.
func (t Type) Valid() bool { _, ok := classes()[t]; return ok }

// MessageID is the MESSAGE_ID of the type's lines in the journal.
func (t Type) MessageID() string { return classes()[t].id }

// Text is what the log says of an event of the type.
func (t Type) Text() string { return classes()[t].text }
