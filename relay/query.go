// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"net/url"
	"strconv"

	"github.com/boxd-dev/boxd/internal/fault"
)

// queryNumber reads a number of at least least from the query, or returns usual if it is missing.
func queryNumber(query url.Values, name string, usual, least int) (int, error) {
	if !query.Has(name) {
		return usual, nil
	}
	n, err := strconv.Atoi(query.Get(name))
	if err != nil || n < least {
		return 0, fault.Field(name, query.Get(name), strconv.Itoa(least)+" or more")
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
