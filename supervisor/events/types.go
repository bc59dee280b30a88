// SPDX-License-Identifier: Apache-2.0

package events

// Type is the type of an event. The set is closed: a client may know them all.
type Type string

// The types.
const (
	SessionStarted   Type = "session.started"
	SessionFailed    Type = "session.failed" // it could not start
	SessionEnded     Type = "session.ended"  // the reason says why
	SessionFrozen    Type = "session.frozen"
	SessionThawed    Type = "session.thawed"
	SessionStopped   Type = "session.stopped" // it has no box any more, and keeps its files on disk
	SessionChanged   Type = "session.changed" // its limits or labels
	SessionAdopted   Type = "session.adopted" // by this boxd, from the previous one
	SessionUnhealthy Type = "session.unhealthy"
	ExecStarted      Type = "exec.started"
	ExecEnded        Type = "exec.ended" // the reason is its status
	ProcessStarted   Type = "process.started"
	ProcessReady     Type = "process.ready"
	ProcessRestarted Type = "process.restarted"
	ProcessEnded     Type = "process.ended" // the reason is its status
	Denied           Type = "denied"        // a layer refused something; the reason names it
	OOM              Type = "oom"           // memory was used up, and the kernel killed a process
	Quota            Type = "quota"         // a quota was hit; the reason names it
	ConfigReloaded   Type = "config.reloaded"
	ConfigRefused    Type = "config.refused" // the previous one stays in force
	DaemonStarted    Type = "daemon.started"
	DaemonStopping   Type = "daemon.stopping"
	AuditFailed      Type = "audit.failed"    // a record could not be written
	AuditRecovered   Type = "audit.recovered" // records are written again
	GrantChanged     Type = "grant.changed"   // a principal got a temporary role, or lost it
	PushDone         Type = "push.done"       // results are in their bucket
	PushFailed       Type = "push.failed"     // they are not; the reason says whether boxd retries
)

// class is the fixed part of a type: the MESSAGE_ID of its journal lines, which systemd/catalog/boxd.catalog explains, and the
// text of the line.
type class struct{ id, text string }

// class returns that of a type, zero if t is not valid. It runs for every event, so it allocates nothing.
func (t Type) class() class { //nolint:funlen // a row for each type
	switch t {
	case SessionStarted:
		return class{"0e953970fc8941e2b4a0bc1367f7c899", "session started"}
	case SessionFailed:
		return class{"6ecea3e8a65748e9a28e23eb63c2965f", "session start failed"}
	case SessionEnded:
		return class{"a08dbcc92a444c358517c6ac3e07988f", "session ended"}
	case SessionFrozen:
		return class{"aa7dacdae4b74867a9c7183e3b040bdd", "session frozen"}
	case SessionThawed:
		return class{"aa57eb8ad1114fba8ae89660214e62c8", "session thawed"}
	case SessionStopped:
		return class{"f15a63e702fa499e943b7e42d87016af", "session stopped"}
	case SessionChanged:
		return class{"6147322f6a154a69a1d84fb24d47bc7c", "session changed"}
	case SessionAdopted:
		return class{"5bdf9c356b7a47fd9c3bd2f05f8c60e7", "session taken over"}
	case SessionUnhealthy:
		return class{"50c7321240d144c4b2daacd2d1bb4ff8", "session does not answer"}
	case ExecStarted:
		return class{"0340e0ba0ab040d9ba7af25d4d51a607", "execution started"}
	case ExecEnded:
		return class{"8a44e4c349754a7980580577fd4cc6de", "execution ended"}
	case ProcessStarted:
		return class{"2b3ce3ef63734085ba67cfe8af490506", "process started"}
	case ProcessReady:
		return class{"b790b1260be64629971bbedcfccc81b3", "process ready"}
	case ProcessRestarted:
		return class{"db7cf0e695ad490497180916ec5de6ef", "process started again"}
	case ProcessEnded:
		return class{"6850915766e348fd9337992b9d00493a", "process ended"}
	case Denied:
		return class{"03faab4132154371b74dc3e21d608bab", "request denied"}
	case OOM:
		return class{"dd784f4935b746f998f2c51687a1bd05", "memory used up"}
	case Quota:
		return class{"2d5c47c0f80142bd87d5f88c1518d3c7", "quota hit"}
	case ConfigReloaded:
		return class{"32f25902c0714b99b634c366d081bc4b", "configuration read again, for new sessions"}
	case ConfigRefused:
		return class{"939f8ac8bbb14810a0774f55b92e5e78", "the configuration is invalid; the previous one stays in force"}
	case DaemonStarted:
		return class{"9c2523969e1547a88227471c7d37105b", "boxd serves"}
	case DaemonStopping:
		return class{"f0d1700546f743eaa45228ac637f817a", "boxd stops"}
	case AuditFailed:
		return class{"4630a94acdad4e42afe800be7ad6e351", "audit record not written"}
	case AuditRecovered:
		return class{"fc5944233f194dd6b3724d26c2cec7a4", "audit records are written again"}
	case GrantChanged:
		return class{"3570b1eb601b4bba9e6ac153f2ddd9fa", "grant changed"}
	case PushDone:
		return class{"c1f0b5a7e3d14b0f9a5d6e2f7b8c9d01", "results pushed"}
	case PushFailed:
		return class{"5e7d2a90c4b84f6d8e13a7c60f92b4d3", "results not pushed"}
	}
	return class{}
}

// Types lists all types.
func Types() []Type {
	return []Type{
		SessionStarted, SessionFailed, SessionEnded, SessionFrozen, SessionThawed, SessionStopped, SessionChanged, SessionAdopted, SessionUnhealthy,
		ExecStarted, ExecEnded, ProcessStarted, ProcessReady, ProcessRestarted, ProcessEnded, Denied, OOM, Quota,
		ConfigReloaded, ConfigRefused, DaemonStarted, DaemonStopping, AuditFailed, AuditRecovered, GrantChanged, PushDone, PushFailed,
	}
}

// Valid reports whether t is a known type.
func (t Type) Valid() bool { return t.class() != class{} }

// MessageID is the MESSAGE_ID of the type's journal lines.
func (t Type) MessageID() string { return t.class().id }

// Text is the log message of the type's events.
func (t Type) Text() string { return t.class().text }
