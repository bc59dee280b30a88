// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
)

// Bounds of an environment.
const (
	MaxVariables = 256               // variables
	MaxSize      = 32 * quantity.KiB // of all
)

// CheckVariables validates the variables of a request.
func CheckVariables(env map[string]string) error {
	if len(env) > MaxVariables {
		return fault.Field("env", len(env), fmt.Sprintf("at most %d variables", MaxVariables))
	}
	var size quantity.Size
	for name, value := range env {
		if err := checkVariable(name, value); err != nil {
			return err
		}
		size += quantity.Size(len(name) + len(value) + 2)
	}
	if size > MaxSize {
		return fault.Field("env", size, fmt.Sprintf("at most %v in total", MaxSize))
	}
	return nil
}

// checkVariable validates one variable; its value never appears in the error.
func checkVariable(name, value string) error {
	if name == "" || strings.ContainsAny(name, "=\x00") {
		return fault.Field("env", name, "a name without = and NUL")
	}
	if strings.Contains(value, "\x00") {
		return fault.Field("env", name, "a variable whose value has no NUL")
	}
	return nil
}
