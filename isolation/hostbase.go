// SPDX-License-Identifier: Apache-2.0

package isolation

// BaseCommand is the first argument that makes boxfiles copy what roots of the host's programs that boxes can write to have in
// common, outside of boxes: as root it makes what belongs to PID 1, then drops that, and copies with the rights of the id that is its
// second argument. It writes BaseDone or an error to its standard output.
const (
	BaseCommand = "base"
	BaseDone    = "done"
)

// Descriptors that it is started with.
const (
	BaseFrom = 3 // the root of boxes that are not written to
	BaseTo   = 4 // an empty directory of BoxUID's
)
