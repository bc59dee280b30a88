// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Pressure is the share of the last ten seconds in which some task waited for a resource, in percent (the kernel's
// Documentation/accounting/psi.rst). All are zero where the kernel does not measure it.
type Pressure struct{ CPU, Memory, IO float64 }

// ReadPressure reads the pressure on this machine.
func ReadPressure() (Pressure, error) {
	var p Pressure
	for name, to := range map[string]*float64{"cpu": &p.CPU, "memory": &p.Memory, "io": &p.IO} {
		text, err := os.ReadFile("/proc/pressure/" + name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) {
			continue // not built in, or disabled by psi=0
		}
		if err == nil {
			*to, err = parsePressure(string(text))
		}
		if err != nil {
			return Pressure{}, fmt.Errorf("pressure of %s: %w", name, err)
		}
	}
	return p, nil
}

var errPressure = errors.New("no avg10 from 0 to 100 in the line that begins with some")

// parsePressure parses "some avg10=" of a file of /proc/pressure.
func parsePressure(text string) (float64, error) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "some avg10=")
		if !ok {
			continue
		}
		number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		p, err := strconv.ParseFloat(number, 64)
		if err != nil || !(p >= 0 && p <= 100) {
			return 0, errPressure
		}
		return p, nil
	}
	return 0, errPressure
}
