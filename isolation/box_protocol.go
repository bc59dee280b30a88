// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"strconv"
)

// BoxVersion is the version of this conversation. PID 1 of a box speaks one all its life; boxd speaks
// those of all boxes it may find, of which this is the first.
const BoxVersion = 1

// The conversation with PID 1 of a box, over one SEQPACKET socket. The keeper says the first word and
// hands its end to boxd, so nothing privileged is in the path of an exec.
//
//	keeper, then boxd                     boxinit
//	Setup{…} + mount trees ────────────►  make the box, drop privileges
//	─── the socket changes hands ───
//	            ◄──────────────────────── Ready                  or SetupFailed{step, item, errno}
//	Times{…} ──────────────────────────►  how long to live without boxd
//	Private{} + file ──────────────────►  something PID 1 only keeps for the next boxd
//	Spawn{id, command} + files ────────►  start a program
//	            ◄──────────────────────── Started{id, pid} + files    if it is durable
//	            ◄──────────────────────── SpawnFailed{id, step, item, errno}, and that is its end
//	Signal{id, signal} ────────────────►  to the program and what it started
//	Kill{id} ──────────────────────────►  end the program and what it started
//	CloseInput{id} ────────────────────►  boxd has closed its end of standard input: so does PID 1
//	Pace{id, wait, offsets} ───────────►  how far readers have come, that the program has to wait for
//	Freeze{on} ────────────────────────►  stop all programs where they are, or let them go on
//	            ◄──────────────────────── Frozen{errno}, when that is so
//	            ◄──────────────────────── Exited{id, exit} + kept output not handed over before
//	Forget{id} ────────────────────────►  of a durable program that has ended: drop what is kept
//	            ◄──────────────────────── Quiet, when the processes of an Exit with Kept are gone
//
// Another boxd, after the first has gone, connects to the socket that came last with Setup, and begins:
//
//	Adopt{version} ────────────────────►
//	            ◄──────────────────────── Program{id, …} + files, for each durable one
//	            ◄──────────────────────── Adopted{version, …} + what came last with Private, if anything
//
// Files of Setup: the mount trees, then the group that holds the programs' groups, if Grouped, then a
// listening socket, if Adoptable.
// Files of Spawn: the script, if ScriptArg ≥ 0, then standard input, if it is StdinFile, then for a
// durable program one that PID 1 only keeps for the next boxd.
// Files of Started: of a Direct program the far ends of its 0, 1 and 2; with StdinPipe the writing end of standard input or the terminal, and the memfd with what
// has been written there, see client.Input; then, unless the program continues another, the memfds of standard
// output and error and of their journal, see isolation/output, and an eventfd that is written whenever one
// of them has grown.
// Files of Program: the one that PID 1 has only kept, then all those of Started.
// Files of Exited: the memfds of the streams named in Attached, in order.
//
// When boxd's end closes, PID 1 ends all programs that are not durable, and the box as Times say.

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
)

// ProgramGroup is the name of the cgroup of a program. It is never used again: in a group that has
// once been killed nothing can start, from Linux 6.12 on.
func ProgramGroup(id uint32) string { return "e" + strconv.FormatUint(uint64(id), 10) }

// MaxBoxReply is the largest message PID 1 sends, in bytes.
const MaxBoxReply = 4 << 10

// Setup is what a fresh PID 1 needs to know. The trees of Mounts travel beside it, in order.
type Setup struct {
	Hostname string
	Scratch  Scratch
	Rlimits  []Rlimit
	Mounts   []SetupMount
	Grouped  bool // every program gets a cgroup
	// Adoptable boxes have a socket by which another boxd finds them.
	Adoptable bool
	Filter    []byte // seccomp program, as in isolation/seccomp
	Resolv    string // text of resolv.conf(5)
	View      View
}

// SetupMount is where a mount tree goes; see isolation/overlay for those on "/".
type SetupMount struct {
	Target   string
	Writable bool
}

// BoxRequest is a message to PID 1; exactly one pointer is set.
type BoxRequest struct {
	Setup  *Setup
	ID     uint32 // of the program; chosen by the sender, never used twice in a box
	Spawn  *Command
	Signal int
	Kill   bool
	Freeze *Freeze
	Pace   *Pace
	Times  *Times

	Private    bool
	CloseInput bool
	Forget     bool
	Adopt      uint32 // version of the asker
}

// Freeze asks that no program of the box runs, or that they do again.
type Freeze struct{ On bool }

// Pace says whether a durable program waits for its readers, when it is as far ahead of them as Output.Tail,
// and how far they have come.
type Pace struct {
	Wait  bool
	Taken [2]uint64
}

// BoxReply is a message from PID 1.
type BoxReply struct {
	Ready    bool
	ID       uint32
	Started  bool
	PID      uint32 // in the box's own numbering
	Exited   *Exit
	Attached [2]bool // which streams' memfds travel with Exited
	Quiet    bool    // no process is left but PID 1
	Frozen   bool    // what Freeze asked for is so; with Failed, it is not
	Failed   *StepError
	Program  *ProgramState
	Adopted  *Adopted
}

// ProgramState is a durable program that PID 1 has for the next boxd. Exited is set if it has ended.
type ProgramState struct {
	PID      uint32
	Input    bool   // the files of standard input are there
	Taken    uint64 // bytes of standard input that it has ever been given
	Terminal bool
	Output   Output
	Exited   *Exit
}

// Adopted is the last word on the adoption of a box.
type Adopted struct {
	Version     uint32 // of the conversation
	Next        uint32 // no program has had this id or a greater one
	Frozen      bool
	LeftRunning bool // processes go on without their program
	Private     bool // a file comes with it
}
