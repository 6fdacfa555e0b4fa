package extproc

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"keyway/domain"
	"keyway/envoy"
	"keyway/wire"
)

// watchStream is what Envoy says of a response before the first message.
type watchStream struct {
	decision domain.Decision
	// known is false for an answer to a request that was never admitted.
	known bool
	notes string
}

// processWatch sees one response pass. The error that ends the stream says
// nothing about how the response ended: what was seen before does, and the
// deferred exit settles by it.
func (s *Server) processWatch(stream extprocv3.ExternalProcessor_ProcessServer, ws watchStream) error {
	s.watches.Add(1)
	defer s.watches.Done()
	var w *watch
	defer func() {
		if w != nil {
			w.end()
			s.ends.forget(ws.decision.RequestID)
		}
	}()
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		start := time.Now()
		switch msg := req.GetRequest().(type) {
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			var resp *extprocv3.ProcessingResponse
			w, resp = s.responseHead(ws, req.GetAttributes(), msg.ResponseHeaders)
			err = stream.Send(resp)
		case *extprocv3.ProcessingRequest_ResponseBody:
			err = s.responseBody(stream, w, msg.ResponseBody)
		case *extprocv3.ProcessingRequest_ResponseTrailers:
			err = s.responseTrailers(stream, w)
		default:
			err = stream.Send(&extprocv3.ProcessingResponse{})
		}
		s.metrics.added.WithLabelValues("watch").Observe(time.Since(start).Seconds())
		if err != nil {
			return err
		}
		if w != nil && w.finished {
			// The client has its answer; now the books.
			w.end()
		}
	}
}

func (s *Server) responseHead(ws watchStream, attributes map[string]*structpb.Struct, h *extprocv3.HttpHeaders) (*watch, *extprocv3.ProcessingResponse) {
	if !ws.known {
		return nil, headResponse(watchPlan{})
	}
	headers := headerMap(h.GetHeaders())
	a := answer{headers: headers, ended: h.GetEndOfStream(), notes: ws.notes}
	// An unreadable status is an Envoy fault; 0 then counts as no success.
	a.status, _ = strconv.Atoi(a.header(":status"))
	for _, fields := range attributes {
		if v, ok := fields.GetFields()[envoy.AttributeAttempts]; ok {
			a.attempts = int(v.GetNumberValue())
		}
		if v, ok := fields.GetFields()[envoy.AttributeResponseCode]; ok {
			a.fromUpstream = v.GetStringValue() == detailsViaUpstream
			a.unanswered = strings.HasPrefix(v.GetStringValue(), detailsUnanswered)
		}
	}
	w, plan := s.begin(ws.decision, a)
	if plan.replace != nil {
		return w, immediate(ws.decision, plan.replace)
	}
	return w, headResponse(plan)
}

func headResponse(p watchPlan) *extprocv3.ProcessingResponse {
	resp := &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: mutation(p.set, p.remove)},
		}},
	}
	if p.body {
		resp.ModeOverride = &extprocfilterv3.ProcessingMode{
			ResponseHeaderMode:  extprocfilterv3.ProcessingMode_SEND,
			ResponseBodyMode:    extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
			ResponseTrailerMode: extprocfilterv3.ProcessingMode_SEND,
		}
	}
	return resp
}

func (s *Server) responseBody(stream extprocv3.ExternalProcessor_ProcessServer, w *watch, b *extprocv3.HttpBody) error {
	if w == nil || w.watcher == nil {
		return stream.Send(bodyChunk(b.GetBody(), b.GetEndOfStream()))
	}
	if w.firstByte.IsZero() && len(b.GetBody()) > 0 {
		s.metrics.ttft.Observe(s.now().Sub(w.decision.AdmittedAt).Seconds())
	}
	out := w.chunk(b.GetBody())
	if !b.GetEndOfStream() {
		return stream.Send(bodyChunk(out, false))
	}
	// The last bytes may lie in the watcher's buffer, which finish uses again.
	out = bytes.Clone(out)
	return stream.Send(bodyChunk(append(out, w.finish()...), true))
}

func (s *Server) responseTrailers(stream extprocv3.ExternalProcessor_ProcessServer, w *watch) error {
	if w != nil && w.watcher != nil {
		if tail := w.finish(); len(tail) > 0 {
			if err := stream.Send(bodyChunk(tail, false)); err != nil {
				return err
			}
		}
	}
	return stream.Send(&extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}},
	})
}

func bodyChunk(body []byte, end bool) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{
			BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
				StreamedResponse: &extprocv3.StreamedBodyResponse{Body: body, EndOfStream: end},
			}},
		}}},
	}
}

// headerMap reads Envoy's header list; names come in lower case.
func headerMap(h *corev3.HeaderMap) map[string][]string {
	out := make(map[string][]string, len(h.GetHeaders()))
	for _, v := range h.GetHeaders() {
		value := v.GetValue()
		if raw := v.GetRawValue(); len(raw) > 0 {
			value = string(raw)
		}
		out[v.GetKey()] = append(out[v.GetKey()], value)
	}
	return out
}

func mutation(set []wire.Header, remove []string) *extprocv3.HeaderMutation {
	return &extprocv3.HeaderMutation{SetHeaders: headerOptions(set), RemoveHeaders: remove}
}

func headerOptions(set []wire.Header) []*corev3.HeaderValueOption {
	out := make([]*corev3.HeaderValueOption, len(set))
	for i, h := range set {
		out[i] = &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: h.Name, RawValue: []byte(h.Value)},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}
	}
	return out
}

// immediate answers in place of the upstream, in the client's dialect.
func immediate(d domain.Decision, err error) *extprocv3.ProcessingResponse {
	e := domain.AsError(err)
	dialect := d.API.Dialect()
	headers := wire.ErrorHeaders(dialect, e)
	if dialect == domain.DialectAnthropic {
		headers = append(headers, wire.Header{Name: "request-id", Value: d.RequestID})
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
		Status:  &typev3.HttpStatus{Code: typev3.StatusCode(wire.Status(dialect, e.Code))},
		Headers: &extprocv3.HeaderMutation{SetHeaders: headerOptions(headers)},
		Body:    wire.ErrorBody(dialect, e, d.RequestID),
		Details: envoy.DetailsPrefix + string(e.Code),
	}}}
}
