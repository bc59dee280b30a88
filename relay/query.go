// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"net/url"
	"strconv"

	"github.com/boxd-dev/boxd/internal/fault"
)

// queryNumber reads a number of at least minimum from the query, or returns def if it is missing.
func queryNumber(query url.Values, name string, def, minimum int) (int, error) {
	if !query.Has(name) {
		return def, nil
	}
	n, err := strconv.Atoi(query.Get(name))
	if err != nil || n < minimum {
		return 0, fault.Field(name, query.Get(name), strconv.Itoa(minimum)+" or more")
	}
	return n, nil
}

// queryFlag reads true or false from the query; false if it is missing.
func queryFlag(query url.Values, name string) (bool, error) {
	switch value := query.Get(name); {
	case !query.Has(name) || value == "false":
		return false, nil
	case value == "true":
		return true, nil
	default:
		return false, fault.Field(name, value, "true or false")
	}
}
