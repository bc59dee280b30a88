// SPDX-License-Identifier: Apache-2.0

// Package openapi is the description of the API that boxd serves: openapi.yaml, which people write and read,
// as JSON.
package openapi

import _ "embed"

//go:embed openapi.json
var document string

// Document returns the OpenAPI document as JSON.
func Document() string { return document }
