package palimpsest

import (
	"context"
	"strings"

	"google.golang.org/grpc/metadata"
)

const (
	traceparent = "traceparent"
	tracestate  = "tracestate"
)

// traced returns the context of a call with the current span as its headers, where there is one.
func (c *connection) traced(ctx context.Context) context.Context {
	if c.trace == nil {
		return ctx
	}
	headers := c.trace(ctx)
	for _, name := range []string{traceparent, tracestate} {
		if value := headers[name]; value != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, name, value)
		}
	}
	return ctx
}

// traceparent returns the current span as one header; empty without one.
func (c *connection) traceparent(ctx context.Context) string {
	if c.trace == nil {
		return ""
	}
	return c.trace(ctx)[traceparent]
}

// traceOf returns the trace that a header names if it is sampled; else empty.
func traceOf(header string) string {
	if len(header) != 55 || !strings.Contains("13579bdf", header[54:]) {
		return ""
	}
	return header[3:35]
}
