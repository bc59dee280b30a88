// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"strconv"
)

// BoxVersion is the version of this protocol. PID 1 of a box speaks one version all its life, and
// with a boxd of an earlier version that one: what is new in a version has a message of its own, and
// each side sends none that the other does not know.
//
//	1  the first
//	2  SpawnExisting, and SetupUser
//	3  SpawnMerged
//	4  SpawnSpooled
//	5  SpawnRoot
const BoxVersion = 5

// SpoolVersion is the first version whose boxd reads output on disk, and RootVersion the first whose PID 1 runs programs as root.
const (
	SpoolVersion = 4
	RootVersion  = 5
)

// The protocol between boxd and PID 1 of a box, over one SEQPACKET socket. The keeper sends the
// first message and then passes its end to boxd, so no privileged process takes part in an exec.
//
//	keeper, then boxd                     boxinit
//	UnshareCgroup{} ───────────────────►  if the box has cgroups, before Setup: make a cgroup namespace
//	            ◄──────────────────────── Unshared               or SetupFailed
//	Setup{…} + mount trees ────────────►  set the box up, drop privileges; SetupUser for another user,
//	                                      SetupRoot if programs may run as root
//	─── the socket changes hands ───
//	            ◄──────────────────────── Ready                  or SetupFailed{step, item, errno}
//	Times{…} ──────────────────────────►  how long to live without boxd
//	Private{} + file ──────────────────►  a file that PID 1 only holds for the next boxd
//	Spawn{id, command} + files ────────►  start a program; SpawnExisting only where its directory is,
//	                                      SpawnMerged with one pipe for its output and error,
//	                                      SpawnSpooled with its output on disk,
//	                                      SpawnRoot as root
//	            ◄──────────────────────── Started{id, pid} + files    if it is durable
//	            ◄──────────────────────── SpawnFailed{id, step, item, errno}, with which it has ended
//	Signal{id, signal} ────────────────►  to the program and what it started
//	Kill{id} ──────────────────────────►  end the program and what it started
//	CloseInput{id} ────────────────────►  boxd has closed its end of standard input: so does PID 1
//	Pace{id, wait, offsets} ───────────►  how far the readers are for whom the program has to wait
//	Freeze{on} ────────────────────────►  stop all programs where they are, or let them continue
//	            ◄──────────────────────── Frozen{errno}, once that has happened
//	            ◄──────────────────────── Exited{id, exit} + retained output that was not handed over before
//	Forget{id} ────────────────────────►  drop what is held of a durable program that has ended
//	            ◄──────────────────────── Quiet, when the processes of an Exit with LeftRunning are gone
//
// After the first boxd has gone, another one connects to the socket that came last with Setup,
// and begins:
//
//	Adopt{version} ────────────────────►
//	            ◄──────────────────────── Program{id, …} + files, for each durable one
//	            ◄──────────────────────── Adopted{version, …} + the last file of Private, if any
//
// Files with the messages:
//
//   - Setup: the mount trees, then the parent of the programs' cgroups, if Grouped,
//     then a listening socket, if Adoptable.
//   - Spawn: the script, if ScriptArg ≥ 0, then standard input, if it is StdinFile,
//     then for a durable program one that PID 1 only holds for the next boxd.
//   - Started: for a Direct program boxd's ends of its 0, 1 and 2; with StdinPipe the
//     writing end of standard input or the terminal, and the memfd with what has been written
//     there, see client.Input; then, unless the program continues another, the memfds of
//     standard output and error and of their journal, see isolation/output, and an eventfd
//     that is written whenever one of them has grown.
//   - Program: the one that PID 1 was only holding, then all those of Started.
//   - Exited: the memfds of the streams named in Attached, in order.
//
// When boxd's end closes, PID 1 ends all programs that are not durable, and the box when Times
// say so.

// Types of the messages with boxinit.
const (
	msgSetup uint8 = iota + 64
	msgReady
	msgSetupFailed
	msgSpawn
	msgStarted
	msgSpawnFailed
	msgSignal
	msgKill
	msgPace
	msgExited
	msgQuiet
	msgFreeze
	msgFrozen
	msgTimes
	msgCloseInput
	msgForget
	msgTakeOver
	msgProgram
	msgAdopted
	msgPrivate
	msgSetupUser     // a Setup followed by its User
	msgSpawnExisting // a Spawn whose Dir has to be Existing
	msgSpawnMerged   // a Spawn that is Merged, followed by whether its Dir has to be Existing
	msgSpawnSpooled  // a Spawn whose output is on disk, followed by whether its Dir has to be Existing and it is Merged
	msgUnshareCgroup // these two pass between a keeper and the boxinit of the same release
	msgUnshared
	msgSetupRoot // a Setup followed by its User, which may be zero, for a box in which programs may run as root
	msgSpawnRoot // a Spawn that is Root, followed by whether its Dir has to be Existing, it is Merged and it is Spool
)

// ProgramGroup returns the name of a program's cgroup. It is never reused: since Linux 6.12
// nothing can start in a cgroup that has been killed once.
func ProgramGroup(id uint32) string { return "e" + strconv.FormatUint(uint64(id), 10) }

// MaxBoxReply is the largest message PID 1 sends, in bytes.
const MaxBoxReply = 4 << 10

// Setup is what a fresh PID 1 needs to know. The trees of Mounts are sent with it, in order.
type Setup struct {
	Hostname string
	Scratch  Scratch
	Rlimits  []Rlimit
	Mounts   []SetupMount
	Grouped  bool // every program gets a cgroup
	// Adoptable boxes have a socket on which another boxd can reach them.
	Adoptable bool
	Filter    []byte // seccomp filter, as in isolation/seccomp
	Resolv    string // text of resolv.conf(5)
	View      View
	User      User // zero: BoxUser and Home
	// Root makes a user namespace for programs that run as root (Command.Root). They are RootID to everybody else, and have
	// capabilities over the files and ids of the box alone: in that namespace, which owns nothing but them.
	Root bool
}

// SetupMount is where a mount tree goes; isolation/overlay describes those on "/".
type SetupMount struct {
	Target   string
	Writable bool
}

// BoxRequest is a message to PID 1; exactly one pointer is set.
type BoxRequest struct {
	Setup  *Setup
	ID     uint32 // id of the program; chosen by the sender, never used twice in a box
	Spawn  *Command
	Signal int
	Kill   bool
	Freeze *Freeze
	Pace   *Pace
	Times  *Times

	// UnshareCgroup asks for a cgroup namespace whose root is the cgroup that PID 1 is in (cgroup_namespaces(7)). It comes before
	// Setup, and PID 1 answers.
	UnshareCgroup bool

	Private    bool
	CloseInput bool
	Forget     bool
	Adopt      uint32 // version of the sender
}

// Freeze asks PID 1 to stop all programs of the box, or to let them continue.
type Freeze struct{ On bool }

// Pace says whether a durable program waits for its readers when it is Output.Tail bytes ahead of
// them, and how far they have come.
type Pace struct {
	Wait  bool
	Taken [2]uint64
}

// BoxReply is a message from PID 1.
type BoxReply struct {
	Ready    bool
	ID       uint32
	Started  bool
	PID      uint32 // in the box's pid namespace
	Exited   *Exit
	Attached [2]bool // which streams' memfds come with Exited
	Quiet    bool    // no process is left but PID 1
	Frozen   bool    // the Freeze is done; with Failed, it could not be
	Unshared bool    // PID 1 has its cgroup namespace
	Failed   *StepError
	Program  *ProgramState
	Adopted  *Adopted
}

// ProgramState is a durable program that PID 1 reports to the next boxd. Exited is set if it has
// ended.
type ProgramState struct {
	PID      uint32
	Input    bool   // the files of standard input come with it
	Taken    uint64 // bytes of standard input that it has ever been given
	Terminal bool
	Output   Output
	Exited   *Exit
}

// Adopted is the last message of the adoption of a box.
type Adopted struct {
	Version     uint32 // version of the protocol
	Next        uint32 // no program has had this id or a greater one
	Frozen      bool
	LeftRunning bool // processes outlive their program
	Private     bool // a file comes with it
}
