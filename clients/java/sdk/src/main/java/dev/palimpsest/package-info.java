/**
 * The client of Palimpsest, the memory service for programs that use language models.
 *
 * <p>{@link dev.palimpsest.Palimpsest} connects; {@link dev.palimpsest.Session} remembers, recalls
 * and asks; {@link dev.palimpsest.Memory}, {@link dev.palimpsest.Tree} and {@link
 * dev.palimpsest.State} are the kinds of memories; {@link dev.palimpsest.Producer} appends long
 * streams; {@link dev.palimpsest.Access} administers. All errors are {@link
 * dev.palimpsest.PalimpsestException}.
 *
 * <p>Results, and the options of calls, are the messages of the API in {@code dev.palimpsest.v1}. A
 * method with a {@link java.util.function.Consumer} of a builder passes the request to it:
 *
 * <pre>{@code
 * alice.recall("What may she eat?", request -> request.setMaxTokens(800));
 * }</pre>
 *
 * <p>Clients, sessions, memories and producers may be shared by threads. Calls block, until their
 * timeout at most; an interrupt ends them with {@link
 * dev.palimpsest.PalimpsestException.Cancelled}.
 */
package dev.palimpsest;
