/*
 * error.c: the calling thread's last error, as text and as JSON.
 *
 * The text is one line: control characters, which a tag may hold, become spaces. The JSON says the
 * same; for an error of the engine it is the engine's, which knows more than code and message.
 */
#include "shim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void make_one_line(char *text)
{
	for (; *text != '\0'; text++)
		if ((unsigned char)*text < ' ' || *text == 0x7f)
			*text = ' ';
}

/* ---- JSON -------------------------------------------------------------------------------- */

size_t utf8_length(const unsigned char *text)
{
	static const struct {
		unsigned char first, last, least_second, most_second;
		size_t length;
	} sequences[] = {
		{0x01, 0x7f, 0, 0, 1},
		{0xc2, 0xdf, 0x80, 0xbf, 2},
		{0xe0, 0xe0, 0xa0, 0xbf, 3},
		{0xe1, 0xec, 0x80, 0xbf, 3},
		{0xed, 0xed, 0x80, 0x9f, 3},
		{0xee, 0xef, 0x80, 0xbf, 3},
		{0xf0, 0xf0, 0x90, 0xbf, 4},
		{0xf1, 0xf3, 0x80, 0xbf, 4},
		{0xf4, 0xf4, 0x80, 0x8f, 4},
	};

	for (size_t i = 0; i < sizeof(sequences) / sizeof(sequences[0]); i++) {
		if (text[0] < sequences[i].first || text[0] > sequences[i].last)
			continue;
		size_t length = sequences[i].length;
		if (length > 1 && (text[1] < sequences[i].least_second || text[1] > sequences[i].most_second))
			return 0;
		for (size_t k = 2; k < length; k++)
			if ((text[k] & 0xc0) != 0x80)
				return 0;
		return length;
	}
	return 0;
}

/* Code and message as a JSON object, to be freed; null: no memory. The message is one line. */
static char *make_json(int code, const char *message)
{
	static const char replacement[] = "\\ufffd";
	static const char head[] = "{\"code\":%d,\"message\":\"";
	char *json = malloc(sizeof(head) + 16 + (sizeof(replacement) - 1) * strlen(message));

	if (json == NULL)
		return NULL;
	char *end = json + sprintf(json, head, code);
	for (const char *from = message; *from != '\0';) {
		size_t length = utf8_length((const unsigned char *)from);

		if (length == 0) {
			end = stpcpy(end, replacement);
			from++;
			continue;
		}
		if (*from == '"' || *from == '\\')
			*end++ = '\\';
		end = mempcpy(end, from, length);
		from += length;
	}
	strcpy(end, "\"}");
	return json;
}

/* ---- recording ----------------------------------------------------------------------------- */

int fail(int code, const char *format, ...)
{
	struct thread *t = this_thread();
	va_list arguments;
	char *text;

	va_start(arguments, format);
	if (vasprintf(&text, format, arguments) < 0)
		text = NULL;
	va_end(arguments);
	if (text != NULL)
		make_one_line(text);
	/* Without memory for the text an older one would mislead: none then. */
	thread_keep(&t->error, text);
	thread_keep(&t->error_json, make_json(code, text != NULL ? text : ""));
	return code;
}

/* A text of the engine, to be freed; null: no memory. */
static char *text_of_engine(size_t (*give)(char *, size_t))
{
	size_t length = give(NULL, 0);
	char *text = malloc(length + 1);

	if (text != NULL) {
		text[0] = '\0';
		give(text, length + 1);
	}
	return text;
}

int fail_as_engine(int code)
{
	struct thread *t = this_thread();
	char *text = text_of_engine(engine.last_error);

	if (text == NULL)
		return fail(code, "error %d, and no memory for its text", code);
	make_one_line(text);
	thread_keep(&t->error, text);
	thread_keep(&t->error_json, text_of_engine(engine.last_error_json));
	return code;
}

/* ---- reading it ------------------------------------------------------------------------------ */

const char *last_error(void)
{
	const struct thread *t = this_thread();

	return t->error != NULL ? t->error : "";
}

const char *last_error_of(const char *call)
{
	const char *text = last_error();
	size_t length = strlen(call);

	return strncmp(text, call, length) == 0 && strncmp(text + length, ": ", 2) == 0 ? text + length + 2 : text;
}

static size_t give_text(char *buf, size_t cap, const char *text)
{
	size_t length = strlen(text);

	if (buf != NULL && cap > 0) {
		size_t fits = length < cap ? length : cap - 1;

		memcpy(buf, text, fits);
		buf[fits] = '\0';
	}
	return length;
}

EXPORT size_t ebb_last_error(char *buf, size_t cap)
{
	return give_text(buf, cap, last_error());
}

size_t last_error_json(char *buf, size_t cap)
{
	const struct thread *t = this_thread();

	return give_text(buf, cap, t->error_json != NULL ? t->error_json : "{\"code\":0,\"message\":\"\"}");
}

EXPORT size_t ebb_last_error_json(char *buf, size_t cap)
{
	return last_error_json(buf, cap);
}
